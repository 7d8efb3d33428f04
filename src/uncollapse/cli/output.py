"""The folder a command writes to: filled under a temporary name; nothing is overwritten without `--force`."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from uncollapse.files import move, temporary_folder

from .command import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def output_folder(out: Path, force: bool) -> Iterator[Path]:
    """A temporary folder whose files move to `out` if the block ends well; if it fails, `out` is as before.

    An `out` with something in it is refused unless `force`, which replaces files of the same names and keeps the rest.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give a folder with --out.")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise UserError(
            f"{out} already holds files; choose another folder with --out, or pass --force to replace them."
        )
    with naming_full_disk(out), temporary_folder(out) as new:
        yield new
        out.mkdir(exist_ok=True)
        for file in list(new.iterdir()):
            move(file, out / file.name)


@contextmanager
def naming_full_disk(out: Path) -> Iterator[None]:
    """Raise a UserError in place of an error about a full disk, which does not say what was being written."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(f"there is no room for {out} ({error.strerror}); choose another disk with --out.") from error
