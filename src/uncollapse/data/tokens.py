"""Text as blocks of tokens: encoded once, kept in the cache, read from there as a memory map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from .cache import cache_key, cached_folder
from .text import Corpus, Split
from .tokenizers import load_tokenizer, tokenizer_sha256

FORMAT = "1"  # raised when the same text and tokenizer would give other files
PIECES = 64  # encoded together, in parallel


class TokenBlocks(Dataset[dict[str, Tensor]]):
    """Contiguous blocks of `length` tokens: `input_ids` and, the same, `labels`, which the models shift themselves.

    The last `dropped` tokens, fewer than `length`, are too short for a block and are left out.

    >>> import numpy as np
    >>> blocks = TokenBlocks(np.arange(10, dtype=np.uint16), length=4)
    >>> len(blocks), blocks.dropped, blocks[1]["input_ids"].tolist()
    (2, 2, [4, 5, 6, 7])
    """

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        if length < 2:
            raise ValueError(f"a block needs at least two tokens, one to predict from the other; got length {length}.")
        self.tokens, self.length = tokens, length
        self.dropped = len(tokens) % length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        block = self.tokens[index * self.length : (index + 1) * self.length]
        ids = torch.from_numpy(block.astype(np.int64))
        return {"input_ids": ids, "labels": ids}


@dataclass(frozen=True)
class TokenData:
    """Blocks to train and validate on. Bits per byte = loss / ln 2 / bytes_per_token."""

    train: TokenBlocks
    valid: TokenBlocks
    test: TokenBlocks | None
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    bytes_per_token: float  # UTF-8 bytes of the validation text for each of its tokens (a block's first is average)
    tokenizer_sha256: str


def token_data(
    corpus: Corpus, tokenizer: str | PreTrainedTokenizerBase, vocab_size: int | None = None, length: int = 1024
) -> TokenData:
    """The corpus as blocks of `length` tokens, from the cache if it was encoded before.

    Args:
        corpus: what `load_text` returned.
        tokenizer: a tokenizer, or its name for `load_tokenizer`.
        vocab_size: entries of a trained tokenizer.
        length: tokens per block.

    >>> from uncollapse.data.text import load_text
    >>> data = token_data(load_text("embedded"), "bpe", vocab_size=300, length=64)
    >>> data.train[0]["input_ids"].shape, data.vocab_size, 1 < data.bytes_per_token < 3
    (torch.Size([64]), 300, True)
    """
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(tokenizer, corpus, vocab_size)
    sha256 = tokenizer_sha256(tokenizer)
    splits = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    present = {name: split for name, split in splits.items() if split is not None}

    def write(folder: Path) -> None:
        for name, split in present.items():
            np.save(folder / f"{name}.npy", _encode(split, tokenizer), allow_pickle=False)

    folder = cached_folder(cache_key("tokens", FORMAT, corpus.fingerprint, sha256), write)
    tokens = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in present}
    blocks = {name: TokenBlocks(array, length) for name, array in tokens.items()}
    for name in ("train", "valid"):
        if not len(blocks[name]):
            raise ValueError(
                f"the {name} split of {corpus.name} has {len(tokens[name])} tokens, fewer than one block of {length}; "
                "give more text or a smaller length."
            )
    return TokenData(
        blocks["train"],
        blocks["valid"],
        blocks.get("test"),
        tokenizer,
        len(tokenizer),
        _utf8_bytes(corpus.valid) / len(tokens["valid"]),
        sha256,
    )


def _encode(split: Split, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """The tokens of all pieces in order, in the smallest unsigned integers that hold the vocabulary."""
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    arrays = [np.array(ids, dtype=dtype) for ids in _piece_ids(split, tokenizer)]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)


def _piece_ids(split: Split, tokenizer: PreTrainedTokenizerBase) -> Iterator[list[int]]:
    for start in tqdm(range(0, len(split), PIECES), desc="tokenising", disable=None, leave=False, delay=2.0):
        pieces = list(split[start : start + PIECES])
        # verbose=False: a piece is longer than the model's context, which is no error here
        encoded = tokenizer(pieces, add_special_tokens=False, return_attention_mask=False, verbose=False)
        yield from encoded["input_ids"]


def _utf8_bytes(split: Split) -> int:
    return sum(len(piece.encode("utf-8")) for piece in split)
