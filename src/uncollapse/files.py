"""Files that are whole at every moment, locks that end with their process, and the folder of the user's cache.

Everything is written under a temporary name beside its destination and renamed. A process that is killed leaves the
old file or the new one, and at worst a temporary file, whose name nothing else reads.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

CACHE_VARIABLE = "UNCOLLAPSE_CACHE"
TEMPORARY = re.compile(r"\.(?P<name>.+)-[0-9a-f]{8}\.tmp")
GRACE = 0.2  # seconds: `is_locked` of another process holds a lock for an instant, which is no reason to refuse


class LockedError(OSError):
    """Another process holds the lock."""


def write(path: Path, data: str | bytes) -> None:
    """Write a file, text as UTF-8; its folder is made if need be.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "new" / "a.txt", "text")
    ...     (Path(folder) / "new" / "a.txt").read_text()
    'text'
    """
    with replacing(path) as temporary:
        temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write a file to; it becomes `path` if the block ends well, and goes if it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # or a power cut may leave the new name with nothing in it
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, so on the same disk; it is removed at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder to fill; it becomes `path` if the block ends well, and goes if it does not.

    A `path` that exists is refused unless `replace`.
    """
    if path.exists() and not replace:
        raise FileExistsError(f"{path} exists already; give a new path.")
    with temporary_folder(path) as temporary:
        yield temporary
        if replace:
            move(temporary, path)
        else:
            os.rename(temporary, path)  # refuses a folder with files in it that appeared meanwhile


def move(source: Path, path: Path) -> None:
    """Rename a finished file or folder to `path`, in place of what is there.

    A folder cannot be replaced in one step: a process that is killed between the two leaves `path` missing.
    """
    if not path.is_dir():
        os.replace(source, path)
        return
    with temporary_folder(path) as earlier:
        os.replace(path, earlier / path.name)
        os.replace(source, path)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether a file or folder has a temporary name of this module.

    >>> is_temporary(Path("run/.status.json-0a1b2c3d.tmp")), is_temporary(Path("run/status.json"))
    (True, False)
    """
    return TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left in a folder: all of it, or what was to become `name`.

    Only for the holder of a lock that all writers take: another writer's temporary file looks the same.
    """
    for path in folder.iterdir():
        found = TEMPORARY.fullmatch(path.name)
        if found is None or name not in (None, found["name"]):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be and stays; it ends with the process, however that ends.

    If another process holds it, wait for it, or raise a `LockedError` with `wait=False`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(path)  # flock on Linux and macOS
    try:
        held.acquire(timeout=-1 if wait else GRACE)
    except Timeout:
        raise LockedError(f"{path} is locked by another process.") from None
    try:
        yield
    finally:
        held.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; nothing is made or changed, so that a folder of others will do."""
    if not path.is_file():
        return False
    try:
        import fcntl

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask at once are no holders
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # no flock on this system or disk
        try:
            with lock(path, wait=False):
                return False
        except LockedError:
            return True
    return False


def cache_root() -> Path:
    """The folder of the user's cache: $UNCOLLAPSE_CACHE, else $XDG_CACHE_HOME/uncollapse, else ~/.cache/uncollapse.

    In it are `native` (compiled attention tiles), `tokens` (tokenised text) and `cells` (runs of the studies).
    """
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "uncollapse"


def json_object(text: str, subject: str) -> dict[str, Any]:
    """The JSON object in a text; if there is none, an error whose sentence begins with `subject`.

    >>> json_object('{"step": 1', "line 3 of metrics.jsonl")
    Traceback (most recent call last):
    ValueError: line 3 of metrics.jsonl is not a JSON object (Expecting ',' delimiter at character 10).
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{subject} is not a JSON object ({error.msg} at character {error.pos}).") from None
    if not isinstance(value, dict):
        raise ValueError(f"{subject} is not a JSON object (it is of the type {type(value).__name__}).")
    return value
