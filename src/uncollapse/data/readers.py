"""How text becomes the token ids of a model: the tokenizer that lies in a folder or on the hub, in any form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SENTENCEPIECE = "tokenizer.model"
SENTINELS = [f"<extra_id_{n}>" for n in range(100)]


@dataclass(frozen=True)
class Reader:
    """`ids` of a text, with the special tokens of a whole sequence or without; and special ids, where there are any."""

    ids: Callable[[str, bool], list[int]]
    mask_id: int | None = None
    unknown_id: int | None = None
    sentinel_ids: tuple[int, ...] = ()  # of T5: each stands for a span that is left out


def find_reader(where: str) -> Reader | None:
    """The tokenizer of a folder or a hub name; None if there is none that can be used."""
    file = Path(where) / SENTENCEPIECE
    plain = file.is_file() and not (file.parent / "tokenizer.json").is_file()
    return (_sentencepiece(file) if plain else None) or _of_transformers(where)


def _of_transformers(where: str) -> Reader | None:
    from .tokenizers import read_tokenizer

    try:
        tokenizer = read_tokenizer(where)
    except Exception:  # the hub, the parsers and the optional packages raise many kinds
        return None

    def ids(text: str, special: bool) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=special)["input_ids"]
        return found

    vocabulary = tokenizer.get_vocab()
    sentinels = tuple(vocabulary[name] for name in SENTINELS if name in vocabulary)
    return Reader(ids, tokenizer.mask_token_id, tokenizer.unk_token_id, sentinels)


def _sentencepiece(file: Path) -> Reader | None:
    """A bare tokenizer.model, as LLaMA's first weights came with it."""
    try:
        from sentencepiece import SentencePieceProcessor

        processor = SentencePieceProcessor(model_file=str(file))
    except Exception:  # not installed, or no such file
        return None
    return Reader(lambda text, special: processor.encode(text, add_bos=special), None, processor.unk_id())
