"""`uncollapse reproduce pictures`: the pictures of the report page and of the demo in docs/images."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from uncollapse.cli.command import Command, UserError, option

from .project import find_project


@dataclass(frozen=True)
class PicturesOptions:
    """Options of `uncollapse reproduce pictures`."""

    project: Path | None = option(None, "checkout of uncollapse to write to (default: the one that is installed)")
    only: Literal["report", "demo"] | None = option(
        None,
        "report: the page of a diagnosis, photographed; demo: README's picture and the demo's tables (default: both)",
    )


def run(settings: PicturesOptions) -> int:
    """Run the example of docs/report.md and photograph its page; run the demo and keep its picture and tables."""
    root = find_project(settings.project)
    with TemporaryDirectory() as name:
        if settings.only != "demo":
            _photograph(root, Path(name))
        if settings.only != "report":
            _demonstrate(root, Path(name) / "demo")
    return 0


def _photograph(root: Path, folder: Path) -> None:
    from uncollapse.files import write

    from ..pictures import FOLDER, photograph

    try:
        pictures = photograph(root, folder)
    except ValueError as error:
        raise UserError(str(error)) from error
    for picture in pictures:
        write(root / FOLDER / picture.name, picture.read_bytes())
        print(root / FOLDER / picture.name)


def _demonstrate(root: Path, folder: Path) -> None:
    from uncollapse.cli.demo import PICTURE, TABLES, DemoOptions, run

    from ..pictures import DEMO_TABLES, FOLDER

    run(DemoOptions(out=folder))
    (root / DEMO_TABLES).mkdir(parents=True, exist_ok=True)
    for file, place in ((PICTURE, FOLDER), *((table, DEMO_TABLES) for table in TABLES)):
        shutil.copyfile(folder / file, root / place / file)
        print(root / place / file)


COMMAND = Command(
    name="reproduce pictures",
    summary="Write the pictures in docs/images: the report page (needs playwright and a Chromium), and the demo.",
    example="uncollapse reproduce pictures --only demo --project path/to/uncollapse",
    options=PicturesOptions,
    run=run,
)
