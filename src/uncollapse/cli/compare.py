"""`uncollapse compare ITEM ITEM ...`: what differs between runs or diagnoses, and whether seeds explain it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncollapse.files import printable

from .command import Command, option
from .output import naming_full_disk, output_folder
from .page import check_page_file, saved_diagnosis

PAGE = "compare.html"
TABLES = ("final", "history", "differences", "runs")  # of runs; diagnoses have none


@dataclass(frozen=True)
class CompareOptions:
    """Options of `uncollapse compare`."""

    items: list[Path] = option(
        help="run folders, or folders with seed-* runs; or folders of saved diagnoses", positional=True
    )
    out: Path | None = option(None, "folder for page and tables, or an .html file (default: uncollapse-compare)")
    json: bool = option(False, "print tables and findings as JSON, and write no files unless --out is given")
    force: bool = option(False, "replace the files of an earlier comparison")


def run(settings: CompareOptions) -> int:
    """Read, compare, print, write."""
    out = settings.out
    if out is None and not settings.json:
        out = Path("uncollapse-compare")
    if out is None:
        comparison = _compare(settings.items)
    elif out.suffix == ".html":
        check_page_file(out, settings.force)
        comparison = _compare(settings.items)
        with naming_full_disk(out):
            comparison.to_html(out, force=settings.force)
    else:
        with output_folder(out, settings.force) as folder:  # refuses before any work is done
            comparison = _compare(settings.items)
            for name, table in _tables(comparison).items():
                table.to_csv(folder / f"{name}.csv", index=False)
            comparison.to_html(folder / PAGE)
    print(json.dumps(_as_json(comparison), indent=1, allow_nan=False) if settings.json else printable(str(comparison)))
    if out is not None:
        page = out if out.suffix == ".html" else out / PAGE
        print(f"\npage: {page}", file=sys.stderr if settings.json else sys.stdout)
    return 0


def _compare(items: list[Path]) -> Any:
    import uncollapse as uc

    saved = [None if (item / "recipe.yaml").is_file() else saved_diagnosis(item) for item in items]
    read: list[Any] = [
        item if folder is None else uc.Diagnosis.load(folder) for item, folder in zip(items, saved, strict=True)
    ]
    return uc.compare(read)


def _tables(comparison: Any) -> dict[str, Any]:
    return {name: getattr(comparison, name) for name in TABLES if hasattr(comparison, name)}


def _as_json(comparison: Any) -> dict[str, Any]:
    tables = {
        name: json.loads(table.to_json(orient="records", double_precision=10))  # NaN: null
        for name, table in _tables(comparison).items()
        if name != "history"
    }
    return {"findings": list(comparison.findings), "notes": list(getattr(comparison, "notes", ())), **tables}


COMMAND = Command(
    name="compare",
    summary=(
        "Compare runs: what differs between their recipes, the results, and whether seeds explain the difference. "
        "Or compare two to four saved diagnoses."
    ),
    example="uncollapse compare runs/self-attention runs/hopfield --out comparison",
    options=CompareOptions,
    run=run,
)
