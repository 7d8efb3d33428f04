"""Files that are whole at every moment, sealed folders, locks that end with their process, and the user's cache.

Everything is written under a temporary name beside its destination, synced to the disk and renamed. A process that is
killed, or a power cut, leaves the old file or the new one, and at worst a temporary file, whose name nothing else
reads. A folder is sealed with a manifest of its files, written last: what does not match it was not finished or has
been damaged since.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

CACHE_VARIABLE = "UNCOLLAPSE_CACHE"
MANIFEST = "manifest.json"
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
    make_folder(path.parent)
    temporary = _temporary(path)
    try:
        yield temporary
        sync(temporary)  # or a power cut may leave the new name with nothing in it
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, so on the same disk; it is removed at the end of the block."""
    make_folder(path.parent)
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
        sync_folder(temporary)
        if replace:
            move(temporary, path)
        else:
            os.rename(temporary, path)  # refuses a folder with files in it that appeared meanwhile
            sync(path.parent)


def move(source: Path, path: Path) -> None:
    """Rename a finished file or folder to `path`, in place of what is there.

    A folder cannot be replaced in one step: a process that is killed between the two leaves `path` missing. What is in
    `source` has been synced already, by `seal` or `sync_folder`.
    """
    if not path.is_dir():
        os.replace(source, path)
    else:
        with temporary_folder(path) as earlier:
            os.replace(path, earlier / path.name)
            os.replace(source, path)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it if need be; what is made is still there after a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync(folder.parent)


def sync(path: Path) -> None:
    """Return when the content of a file, or the names in a folder, are on the disk; a power cut does not undo them."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # which cannot open folders, and needs no sync of them
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (is_folder and error.errno == errno.EINVAL):  # a file system that has no sync of folders
            raise
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """`sync` every file and folder in `folder`, and itself."""
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink() and (path.is_dir() or path.is_file()):
            sync(path)
    sync(folder)


def seal(folder: Path, **about: Any) -> None:
    """Write the manifest of a finished folder: `about`, and name, size and sha256 of every file.

    Everything is on the disk before the manifest is there, so one that matches its files is never wrong.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "a.txt", "text")
    ...     seal(Path(folder), step=3)
    ...     read_manifest(Path(folder))["step"], fault(Path(folder))
    ...     write(Path(folder) / "a.txt", "test")
    ...     fault(Path(folder))
    (3, None)
    'the content of a.txt has changed'
    """
    remove_leftovers(folder)
    sync_folder(folder)
    entries = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": sha256(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / MANIFEST
    }
    write(folder / MANIFEST, json.dumps({**about, "files": entries}, indent=1) + "\n")
    sync(folder.parent)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a sealed folder; raises a ValueError that says what is wrong with it."""
    try:
        manifest = json_object((folder / MANIFEST).read_text(encoding="utf-8"), "it")
    except FileNotFoundError:
        raise ValueError("it was not finished (no manifest)") from None
    except (OSError, ValueError):
        raise ValueError("its manifest cannot be read") from None
    entries = manifest.get("files")
    if not (isinstance(entries, dict) and entries and all(isinstance(entry, dict) for entry in entries.values())):
        raise ValueError("its manifest names no files")
    return manifest


def fault(folder: Path) -> str | None:
    """Why a sealed folder cannot be used, or None if every file is as its manifest says."""
    try:
        return changed_file(folder, read_manifest(folder)["files"])
    except ValueError as error:
        return str(error)


def changed_file(folder: Path, entries: Mapping[str, Any]) -> str | None:
    """What is wrong with the first file that is not as its entry of a manifest says, or None."""
    for name, entry in entries.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry.get("size"):
            return f"{name} has {file.stat().st_size:,} bytes, not {entry.get('size')}"
        if sha256(file) != entry.get("sha256"):
            return f"the content of {name} has changed"
    return None


def sha256(file: Path) -> str:
    """sha256 of the content of a file, in hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


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
    make_folder(path.parent)
    if path.is_symlink():  # which filelock before 3.20.1 follows, and empties the file it leads to
        raise OSError(f"{path} is a symbolic link, which a lock must not be; remove it.")
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

    In it are `native` (compiled attention tiles), `gpu` (results of gpu-test), `tokens` (tokenised text) and `cells`
    (runs of the studies).
    """
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "uncollapse"


def read_text(path: Path) -> str:
    """The text of a file in UTF-8; raises a ValueError that names the file if it is something else."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: it is not UTF-8 ({error.reason} at byte {error.start}).") from None


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
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or thousands of brackets
        raise ValueError(f"{subject} is not a JSON object that can be read ({error}).") from None
    if not isinstance(value, dict):
        raise ValueError(f"{subject} is not a JSON object (it is of the type {type(value).__name__}).")
    return value


def printable(text: str) -> str:
    """Text for a terminal: what could move its cursor, colour or reorder other text is written as Python escapes it.

    >>> print(printable("a name\\x1b[2J"))
    a name\\x1b[2J
    """
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)
