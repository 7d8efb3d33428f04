"""`uncollapse page SAVED ...`: the HTML page of saved diagnoses or of watched runs, one to four of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .command import Command, UserError, option
from .output import naming_full_disk

SAVED = "a folder that uncollapse diagnose or Diagnosis.save wrote, or files that uncollapse.watch wrote"


@dataclass(frozen=True)
class PageOptions:
    """Options of `uncollapse page`."""

    saved: list[Path] = option(
        help="folders of saved diagnoses, or files that uncollapse.watch wrote, one to four", positional=True
    )
    out: Path = option(Path("uncollapse-page.html"), "the page to write")
    force: bool = option(False, "replace the file")


def run(settings: PageOptions) -> int:
    """Load, draw, write."""
    absent = [str(path) for path in settings.saved if not path.exists()]
    if absent:
        raise UserError(f"{absent[0]} does not exist; give {SAVED}.")
    check_page_file(settings.out, settings.force)
    if all(path.is_file() for path in settings.saved):
        return draw_watched(settings)
    import uncollapse as uc

    folders = [saved_diagnosis(path) for path in settings.saved]
    missing = [str(path) for path, folder in zip(settings.saved, folders, strict=True) if folder is None]
    if missing:
        raise UserError(f"{missing[0]} holds no saved diagnosis (diagnosis.json); give {SAVED}.")
    reports = [uc.Diagnosis.load(folder) for folder in folders if folder is not None]
    drawn = reports[0] if len(reports) == 1 else uc.compare(reports)
    with naming_full_disk(settings.out):
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        drawn.to_html(settings.out, force=settings.force)
    print(f"page: {settings.out}")
    return 0


def draw_watched(settings: PageOptions) -> int:
    """The page over training, of files of JSON lines."""
    from uncollapse.watching.pages import write_page

    with naming_full_disk(settings.out):
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        write_page(settings.saved, settings.out, settings.force)
    print(f"page: {settings.out}")
    return 0


def saved_diagnosis(path: Path) -> Path | None:
    """The folder of a diagnosis that was saved at `path`, or below it by `uncollapse diagnose`; None without one."""
    return next((folder for folder in (path, path / "diagnosis") if (folder / "diagnosis.json").is_file()), None)


def check_page_file(out: Path, force: bool) -> None:
    """Refuse, before any work is done, to replace a file that exists."""
    if out.is_dir():
        raise UserError(f"{out} is a folder; give the name of an .html file with --out.")
    if out.exists() and not force:
        raise UserError(f"{out} exists; choose another file with --out, or pass --force to replace it.")


COMMAND = Command(
    name="page",
    summary="Write the page of saved diagnoses or watched runs, one to four, as one self-contained HTML file.",
    example="uncollapse page uncollapse-diagnosis-gpt2 --out gpt2.html",
    options=PageOptions,
    run=run,
)
