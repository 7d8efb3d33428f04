"""Text to train on: embedded, a file or folder, a dataset of `$UNCOLLAPSE_DATA`, or anything `datasets` loads."""

from __future__ import annotations

import hashlib
import lzma
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from uncollapse.extras import require

from .sample import embedded_topics

DATA_VARIABLE = "UNCOLLAPSE_DATA"
HUB_NAMES = {  # short names of the recipes: repository on the hub and its configuration
    "wikitext-2": "Salesforce/wikitext:wikitext-2-v1",
    "wikitext-103": "Salesforce/wikitext:wikitext-103-raw-v1",
}
TRAIN_SHARE = {"tinyshakespeare": 0.9}  # the usual split of a text that comes without one
DEFAULT_TRAIN_SHARE = 0.95
PIECE = 10_000  # characters of a piece, about: tokenizers are fast on many pieces and slow on one long string
SUFFIXES = (".txt", ".xz", ".raw", ".tokens")
ROW_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".arrow")  # files that `datasets` reads
STRING_TYPES = ("string", "large_string")
SPLITS = {"train": ("train",), "valid": ("valid", "validation", "dev"), "test": ("test",)}

Split = tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Text in splits. A split is a tuple of pieces; joined with nothing between them they are the text.

    >>> corpus = load_text("embedded")
    >>> corpus.name, len("".join(corpus.train)) > 8 * len("".join(corpus.valid)), corpus.test
    ('embedded', True, None)
    """

    name: str
    train: Split
    valid: Split
    test: Split | None = None
    files: tuple[Path, ...] = ()  # what was read, where it was files

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the content, split by split."""
        digest = hashlib.sha256()
        for name, split in (("train", self.train), ("valid", self.valid), ("test", self.test)):
            inner = hashlib.sha256()
            for piece in split or ():
                inner.update(piece.encode("utf-8"))
            digest.update(f"{name} {split is not None} {inner.hexdigest()}\n".encode())
        return digest.hexdigest()


def load_text(name: str) -> Corpus:
    """The text called `name`, in splits.

    Args:
        name: "embedded" (the help topics of this Python, a tenth of the text for validation); the path of a text file
            (also .xz; `valid.*` and `test.*` beside a `train.*` are its splits, otherwise the last 5 % validate) or of
            a folder with train, valid and test files or with data that `datasets` reads; a folder of $UNCOLLAPSE_DATA;
            or a dataset on the hub, "name" or "name:configuration". They are tried in this order.
    """
    if name == "embedded":
        return _embedded()
    path = find_data(name)
    if path is None:
        if _looks_like_a_path(name):
            raise ValueError(f"there is no file or folder {name}; give the path of a text file or folder with --data.")
        return _from_datasets(name, *_repository(HUB_NAMES.get(name, name)))
    if path.is_file() and path.suffix in ROW_SUFFIXES:
        return _from_datasets(name, str(path), None)
    if path.is_file():
        return _from_files(name, _siblings(path) or {"train": path})
    files = _split_files(path)
    return _from_files(name, files) if files else _from_datasets(name, str(path), None)


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, decompressed if its name ends in .xz; raises if it is not text or is empty."""
    try:
        raw = path.read_bytes()
        text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8")
    except (UnicodeDecodeError, lzma.LZMAError) as error:
        raise ValueError(f"{path} cannot be read as text ({error}); give a text file in UTF-8.") from None
    if not text.strip():
        raise ValueError(f"{path} is empty; give a file with text.")
    return text


def find_data(name: str) -> Path | None:
    """The file or folder called `name`: as a path, else in $UNCOLLAPSE_DATA; None if neither exists."""
    root = os.environ.get(DATA_VARIABLE)
    candidates = [Path(name).expanduser()] + ([Path(root) / name] if root else [])
    return next((path for path in candidates if path.exists()), None)


def _embedded() -> Corpus:
    """Up to a tenth of the text validates: whole topics, chosen in an order that does not depend on their names."""
    topics = [topic + "\n\n" for topic in embedded_topics()]
    room = sum(map(len, topics)) // 10
    held: set[str] = set()
    for topic in sorted(topics, key=lambda topic: hashlib.sha256(topic.encode()).digest()):
        if len(topic) <= room:
            held.add(topic)
            room -= len(topic)
    train = tuple(topic for topic in topics if topic not in held)
    return Corpus("embedded", train, tuple(topic for topic in topics if topic in held))


def _from_files(name: str, files: dict[str, Path]) -> Corpus:
    texts = {split: read_text(path) for split, path in files.items()}
    if "valid" not in texts:
        share = TRAIN_SHARE.get(Path(name).name, DEFAULT_TRAIN_SHARE)
        cut = int(share * len(texts["train"]))
        texts["train"], texts["valid"] = texts["train"][:cut], texts["train"][cut:]
    test = _pieces(texts["test"]) if "test" in texts else None
    return Corpus(name, _pieces(texts["train"]), _pieces(texts["valid"]), test, tuple(files.values()))


def _split_files(folder: Path) -> dict[str, Path]:
    """The text files of a folder by split; a folder with a single text file is that file; {} if there are none."""
    texts = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in SUFFIXES)
    found: dict[str, Path] = {}
    for split, names in SPLITS.items():
        for path in texts:
            if not any(part in names for part in path.name.lower().split(".")):  # train.txt.xz, wiki.train.tokens
                continue
            if split in found:
                raise ValueError(f"{folder} has two {split} files, {found[split].name} and {path.name}; keep one.")
            found[split] = path
    if "train" in found:
        return found
    return {"train": texts[0]} if len(texts) == 1 else {}


def _siblings(path: Path) -> dict[str, Path] | None:
    """The splits beside a file that is a train split by its name."""
    files = _split_files(path.parent) if path.suffix in SUFFIXES else {}
    return files if files.get("train") == path and len(files) > 1 else None


def _pieces(text: str, size: int = PIECE) -> Split:
    """The text cut at line ends into pieces of about `size` characters.

    >>> [len(piece) for piece in _pieces("a line\\n" * 3_000)]
    [10003, 10003, 994]
    """
    pieces = []
    start = 0
    while start < len(text):
        end = text.find("\n", start + size) + 1 or len(text)
        pieces.append(text[start:end])
        start = end
    return tuple(pieces)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or Path(name).suffix in (*SUFFIXES, *ROW_SUFFIXES)


def _repository(name: str) -> tuple[str, str | None]:
    repository, _, configuration = name.partition(":")
    return repository, configuration or None


def load_rows(name: str, path: str, configuration: str | None, kind: str) -> Any:
    """All splits of a dataset by `datasets`: a folder or file here, or a repository of the hub.

    Args:
        name: what the user called it, for the message.
        path: folder, file or repository.
        configuration: which variant of the dataset; None is its default.
        kind: what could be given instead, for the message.
    """
    require("datasets")
    import datasets

    folder = Path(path)
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():  # written by save_to_disk
            loaded = datasets.load_from_disk(path)
        elif folder.is_file():
            loaded = datasets.load_dataset(str(folder.parent), data_files=folder.name)
        else:
            loaded = datasets.load_dataset(path, configuration)
    except Exception as error:
        if folder.exists():
            raise ValueError(f"{path} cannot be read ({_first_line(error)}); expected {kind}.") from None
        raise ValueError(
            f"{name} is neither a path nor in ${DATA_VARIABLE}, and the hub did not give it ({_first_line(error)}); "
            f"give the path of {kind} with --data."
        ) from None
    return loaded if isinstance(loaded, dict) else {"train": loaded}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def _from_datasets(name: str, path: str, configuration: str | None) -> Corpus:
    rows = load_rows(name, path, configuration, "a text file, or a folder with train.txt and valid.txt,")
    train, valid, test = (next((rows[key] for key in SPLITS[split] if key in rows), None) for split in SPLITS)
    if train is None:
        raise ValueError(f"{name} has the splits {', '.join(rows)}; a split named train is needed.")
    if valid is None:
        cut = int(DEFAULT_TRAIN_SHARE * len(train))
        train, valid = train.select(range(cut)), train.select(range(cut, len(train)))
    last = _text_column(test, name) if test is not None else None
    return Corpus(name, _text_column(train, name), _text_column(valid, name), last)


def _text_column(rows: Any, name: str) -> Split:
    """The text of the rows; each gets a line end where it has none, as WikiText's rows have."""
    strings = [key for key, feature in rows.features.items() if getattr(feature, "dtype", "") in STRING_TYPES]
    column = "text" if "text" in strings else strings[0] if len(strings) == 1 else None
    if column is None:
        raise ValueError(f"{name} has the columns {', '.join(rows.features)}; one named text is needed.")
    texts = (text or "" for text in rows[column])
    return _joined(text if text.endswith("\n") else text + "\n" for text in texts)


def _joined(lines: Iterable[str], size: int = PIECE) -> Split:
    """Many short lines as few pieces of about `size` characters."""
    pieces: list[str] = []
    held: list[str] = []
    length = 0
    for line in lines:
        held.append(line)
        length += len(line)
        if length >= size:
            pieces.append("".join(held))
            held, length = [], 0
    return (*pieces, "".join(held)) if held else tuple(pieces)
