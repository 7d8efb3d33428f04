"""Where a command writes: under a temporary name, then renamed; nothing is overwritten unasked."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .command import UserError


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
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield draft
        out.mkdir(exist_ok=True)
        for file in list(draft.iterdir()):
            if (out / file.name).is_dir():  # a folder cannot be replaced by renaming: the old one goes with the draft
                os.replace(out / file.name, draft / f".earlier-{file.name}")
            os.replace(file, out / file.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
