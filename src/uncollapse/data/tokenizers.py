"""Tokenizers by name: trained on the text (`bpe`, `word`), stored (`gpt2`, `llama`), or a folder or hub name."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from transformers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .cache import cache_key, cached_folder
from .text import DATA_VARIABLE, Corpus, find_data

END_OF_TEXT = "<|endoftext|>"
UNKNOWN, END_OF_LINE = "<unk>", "<eos>"  # WikiText's own names
FILE = "tokenizer.json"
TRAINED_VERSION = "1"  # raised when the same name and text would give another tokenizer
STORED: dict[str, tuple[Any, str, str]] = {  # class, folder in $UNCOLLAPSE_DATA, name on the hub
    "gpt2": (GPT2Tokenizer, "tokenizers/gpt2", "openai-community/gpt2"),
    "llama": (LlamaTokenizer, "tokenizers/mistral-v1", "hf-internal-testing/llama-tokenizer"),
}


def load_tokenizer(name: str, corpus: Corpus, vocab_size: int | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer called `name`; one that is trained learns from the train split alone.

    Args:
        name: "bpe" (byte-level, with `vocab_size` entries), "word" (words between spaces and <eos> at each line end, as
            WikiText counts; `vocab_size` keeps the most frequent ones), "gpt2", "llama", a folder or a hub name.
        corpus: the text.
        vocab_size: entries of a trained tokenizer; the others have their own.

    >>> from uncollapse.data.text import Corpus
    >>> tokenizer = load_tokenizer("word", Corpus("example", ("the cat and the dog\\n",), ("the end\\n",)))
    >>> tokenizer.convert_ids_to_tokens(tokenizer("the end\\n")["input_ids"])
    ['the', '<unk>', '<eos>']
    """
    if name in TRAINED:
        return _trained(name, corpus, vocab_size)
    tokenizer = _stored(name) if name in STORED else _pretrained(AutoTokenizer, name, name)
    if vocab_size is not None and vocab_size < len(tokenizer):
        raise ValueError(
            f"the tokenizer {name} has {len(tokenizer)} entries, and vocab_size is {vocab_size}; "
            "leave vocab_size out, or take the tokenizer bpe or word, which are trained to a size."
        )
    return tokenizer


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 of the serialised tokenizer, or of its vocabulary if it cannot be serialised."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def _stored(name: str) -> PreTrainedTokenizerBase:
    """A stored tokenizer, from $UNCOLLAPSE_DATA if it can be read there, else from the hub."""
    kind, folder, hub_name = STORED[name]
    path = find_data(folder)
    if path is not None:
        try:
            return _pretrained(kind, str(path), name)
        except ValueError:
            pass  # LLaMA's file needs the package sentencepiece; the hub has a form that does not
    return _pretrained(AutoTokenizer, hub_name, name)


def _pretrained(kind: Any, where: str, name: str) -> PreTrainedTokenizerBase:
    try:
        return read_tokenizer(where, kind)
    except Exception as error:  # the hub, the parsers and the optional packages raise many kinds
        also = " (its stored file needs the packages sentencepiece and protobuf)" if name == "llama" else ""
        raise ValueError(
            f"the tokenizer {name} was not found as a folder, in ${DATA_VARIABLE}/tokenizers{also} or on the hub "
            f"({type(error).__name__}); give the path of a folder with a tokenizer, or take bpe or word."
        ) from None


def read_tokenizer(where: str, kind: Any = AutoTokenizer) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or of the hub; raises if there is none, code of its own is not run."""
    tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(where, trust_remote_code=False)
    if len(tokenizer) < len(tokenizer.all_special_tokens) + 2:  # what transformers makes of a model without a tokenizer
        raise FileNotFoundError(f"the tokenizer of {where} has no words.")
    return tokenizer


def _trained(name: str, corpus: Corpus, vocab_size: int | None) -> PreTrainedTokenizerFast:
    train, special = TRAINED[name]
    if name == "bpe" and (vocab_size is None or vocab_size < 257):
        raise ValueError(
            f"the tokenizer bpe needs a vocab_size of at least 257 (256 bytes and the end), got {vocab_size}."
        )
    if vocab_size is not None and vocab_size < 3:
        raise ValueError(f"vocab_size must be at least 3, got {vocab_size}.")

    def write(folder: Path) -> None:
        text = train(corpus, vocab_size).to_str(pretty=True)
        (folder / FILE).write_text(text, encoding="utf-8")  # its own `save` raises no OSError where the disk is full

    key = cache_key("tokenizer", TRAINED_VERSION, name, str(vocab_size), corpus.fingerprint)
    folder = cached_folder(key, write)
    kind: Any = PreTrainedTokenizerFast
    return cast(PreTrainedTokenizerFast, kind(tokenizer_file=str(folder / FILE), **special))


def _train_bpe(corpus: Corpus, vocab_size: int | None) -> Any:
    """Byte-level BPE like GPT-2's: any text can be encoded, no token is unknown."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        corpus.train, vocab_size, min_frequency=2, show_progress=sys.stderr.isatty(), special_tokens=[END_OF_TEXT]
    )
    return tokenizer


def _train_word(corpus: Corpus, vocab_size: int | None) -> Any:
    """Words between white space, <eos> for each line end; by frequency, ties by first appearance."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    counts = Counter(word for piece in corpus.train for word in _words(piece))
    for name in (UNKNOWN, END_OF_LINE):
        counts.pop(name, None)
    words = [word for word, _ in counts.most_common(None if vocab_size is None else vocab_size - 2)]
    vocabulary = {word: number for number, word in enumerate([UNKNOWN, END_OF_LINE, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\n"), f" {END_OF_LINE} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _words(piece: str) -> Iterator[str]:
    for line in piece.split("\n"):
        yield from line.split()


TRAINED: dict[str, tuple[Callable[[Corpus, int | None], Any], dict[str, str]]] = {
    "bpe": (_train_bpe, {"eos_token": END_OF_TEXT, "bos_token": END_OF_TEXT}),
    "word": (_train_word, {"eos_token": END_OF_LINE, "unk_token": UNKNOWN}),
}
