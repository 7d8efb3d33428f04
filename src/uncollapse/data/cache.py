"""A cache of folders that is safe to share: two processes at once, a crash in the middle, a damaged file.

An entry is a folder named by its key. It appears when it is complete and sealed (see `files.seal`), and it is checked
against its manifest before it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from uncollapse import files


def cache_folder() -> Path:
    """Where tokenised data is kept: `tokens` in the user's cache."""
    return files.cache_root() / "tokens"


def cache_key(*parts: str) -> str:
    """sha256 over the parts; where one part ends and the next begins counts.

    >>> cache_key("ab", "c") == cache_key("a", "bc")
    False
    """
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def cached_folder(key: str, write: Callable[[Path], None]) -> Path:
    """The folder of `key`; if it is missing or damaged, `write` fills an empty one first.

    Of several processes that ask for the same key one writes and the others wait for it.

    >>> folder = cached_folder(cache_key("example"), lambda new: print(new.joinpath("a.txt").write_text("text")))
    4
    >>> cached_folder(cache_key("example"), lambda new: print("not called")) == folder
    True
    """
    root = cache_folder()
    entry = root / key
    try:
        with files.lock(root / f"{key}.lock"):
            if files.fault(entry) is not None:
                _write_entry(entry, write)
    except OSError as error:
        raise ValueError(
            f"tokenised data cannot be kept in {root} ({error.strerror or error}); "
            f"set ${files.CACHE_VARIABLE} to a folder with room that can be written."
        ) from error
    return entry


def _write_entry(entry: Path, write: Callable[[Path], None]) -> None:
    files.remove_leftovers(entry.parent, entry.name)  # the lock of the entry is held
    with files.new_folder(entry, replace=True) as new:
        write(new)
        files.seal(new)
