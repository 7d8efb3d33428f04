"""`uncollapse reproduce pictures`: the pictures of the report page in docs/images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from uncollapse.cli.command import Command, UserError, option

from .project import find_project


@dataclass(frozen=True)
class PicturesOptions:
    """Options of `uncollapse reproduce pictures`."""

    project: Path | None = option(None, "checkout of uncollapse to write to (default: the one that is installed)")


def run(settings: PicturesOptions) -> int:
    """Run the example of docs/report.md and photograph its page, light and dark, on a screen and on a phone."""
    root = find_project(settings.project)
    from uncollapse.files import write

    from ..pictures import FOLDER, photograph

    with TemporaryDirectory() as name:
        folder = Path(name)
        try:
            pictures = photograph(root, folder)
        except ValueError as error:
            raise UserError(str(error)) from error
        for picture in pictures:
            write(root / FOLDER / picture.name, picture.read_bytes())
            print(root / FOLDER / picture.name)
    return 0


COMMAND = Command(
    name="reproduce pictures",
    summary="Write the pictures of the report page in docs/images; needs playwright and a Chromium.",
    example="uncollapse reproduce pictures --project path/to/uncollapse",
    options=PicturesOptions,
    run=run,
)
