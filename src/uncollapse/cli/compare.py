"""`uncollapse compare RUN RUN ...`: what differs between runs, what came out, and whether seeds explain it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .command import Command, UserError, option
from .output import output_folder

PAGE = "compare.html"


@dataclass(frozen=True)
class CompareOptions:
    """What can be set."""

    runs: list[Path] = option(help="run folders, or folders that hold seed-* runs", positional=True)
    out: Path | None = option(None, "folder for page and tables, or an .html file (default: uncollapse-compare)")
    json: bool = option(False, "print tables and findings as JSON, and write no files unless --out is given")
    force: bool = option(False, "replace the files of an earlier comparison")


def run(settings: CompareOptions) -> int:
    """Read, compare, print, write."""
    out = settings.out
    if out is None and not settings.json:
        out = Path("uncollapse-compare")
    if out is None:
        comparison = _compare(settings.runs)
    elif out.suffix == ".html":
        if out.exists() and not settings.force:
            raise UserError(f"{out} exists; choose another file with --out, or pass --force to replace it.")
        comparison = _compare(settings.runs)
        comparison.to_html(out, force=settings.force)
    else:
        with output_folder(out, settings.force) as folder:  # refuses before any work is done
            comparison = _compare(settings.runs)
            for name in ("final", "history", "differences", "runs"):
                getattr(comparison, name).to_csv(folder / f"{name}.csv", index=False)
            comparison.to_html(folder / PAGE)
    print(json.dumps(_as_json(comparison), indent=1, allow_nan=False) if settings.json else comparison)
    if out is not None:
        page = out if out.suffix == ".html" else out / PAGE
        print(f"\npage: {page}", file=sys.stderr if settings.json else sys.stdout)
    return 0


def _compare(runs: list[Path]) -> Any:
    from uncollapse.training.compare import compare_runs

    return compare_runs(runs)


def _as_json(comparison: Any) -> dict[str, Any]:
    def rows(table: Any) -> Any:
        return json.loads(table.to_json(orient="records", double_precision=10))  # NaN: null

    return {
        "findings": list(comparison.findings),
        "notes": list(comparison.notes),
        "differences": rows(comparison.differences),
        "final": rows(comparison.final),
        "runs": rows(comparison.runs),
    }


COMMAND = Command(
    name="compare",
    summary="Set runs side by side: what differs between recipes, what came out, and whether seeds explain it.",
    example="uncollapse compare runs/self-attention runs/hopfield --out comparison",
    settings=CompareOptions,
    run=run,
)
