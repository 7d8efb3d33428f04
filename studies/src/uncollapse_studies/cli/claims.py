"""`uncollapse reproduce claims`: check every statement of the two papers and write what was found."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uncollapse.cli.command import Command, UserError, nearest, option
from uncollapse.cli.output import output_folder
from uncollapse.cli.text_table import text_table

from .. import locations
from .output_files import DrawingOptions, circumstances, save_pictures, versions_text

if TYPE_CHECKING:
    from ..audit.claim import Claim

COLUMNS = (
    "id",
    "paper",
    "place",
    "verdict",
    "outcome",
    "root",
    "statement",
    "quote",
    "evidence",
    "how",
    "standard_error",
    "corrected",
    "survives",
    "consequence",
    "changes_our_mind",
)


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions(DrawingOptions):
    """Options of `uncollapse reproduce claims`."""

    out: Path = option(Path("claims"), "folder for claims.json, .csv, .md and .html")
    only: str | None = option(None, "check the claim with this id, or all whose ids begin with it")
    cells: Path | None = option(None, "folder with the results of trained networks (default: the committed ones)")


def run(settings: ClaimsOptions) -> int:
    """Check the claims and write the verdicts; 0 whatever they are, 1 if a check crashed."""
    from ..audit.claim import ERROR, AuditRun
    from ..audit.registry import claims

    chosen = _chosen(claims(), settings.only)
    if settings.cells is not None and not settings.cells.is_dir():
        raise UserError(f"there is no folder {settings.cells}; give one with results of trained networks with --cells.")
    with output_folder(settings.out, settings.force) as folder:  # refuses before any work is done
        from tqdm import tqdm

        from ..audit.audit import PAPERS, audit
        from ..audit.headline import counts, headline, roots
        from ..audit.withdrawn import WITHDRAWN

        run = AuditRun(size="smallest" if settings.quick else "full", cells=settings.cells or locations.cells())
        started = time.perf_counter()
        with tqdm(total=len(chosen), desc="claims", disable=not sys.stderr.isatty(), leave=False) as bar:
            rows = audit(chosen, run, bar.update)
        about = circumstances(settings, {"seed": run.seed}, time.perf_counter() - started)
        record = {
            **about,
            "papers": PAPERS,
            "headline": headline(rows),
            "counts": counts(rows),
            "roots": roots(rows),
            "withdrawn": WITHDRAWN,
            "claims": rows,
        }
        _write(record, folder, settings)
        written = sorted(file.name for file in folder.iterdir())
    print(_table(rows, record["counts"]))
    print(f"\n{record['headline']}")
    print(f"\n{settings.out}: {', '.join(written)}")
    crashed = [row["id"] for row in rows if row["verdict"] == ERROR]
    if crashed:
        print(
            f"uncollapse reproduce claims: {len(crashed)} checks crashed, which is a bug: {', '.join(crashed)}.",
            file=sys.stderr,
        )
    return 1 if crashed else 0


def _chosen(every: Mapping[str, Claim], only: str | None) -> list[Claim]:
    """The claims that --only names: one by its id, or all whose ids begin with it."""
    if only is None or only in every:
        return list(every.values()) if only is None else [every[only]]
    chosen = [claim for id, claim in every.items() if id.startswith(only)]
    if not chosen:
        hint = nearest(only, every, "see docs/claims.md for all of them.", cutoff=0.3)
        raise UserError(f"there is no claim {only!r}; {hint}")
    return chosen


def _write(record: Mapping[str, Any], folder: Path, settings: ClaimsOptions) -> None:
    from ..charts.claims_chart import overview_chart
    from ..charts.claims_markdown import claims_markdown
    from ..charts.claims_page import claims_page

    (folder / "claims.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "claims.md").write_text(claims_markdown(record), encoding="utf-8")
    with (folder / "claims.csv").open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, COLUMNS, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(record["claims"])
    source = (
        f"uncollapse reproduce claims, seed {record['settings']['seed']}, {record['seconds']:.0f} s; "
        f"{versions_text(record)}."
    )
    (folder / "claims.html").write_text(
        claims_page(record, code_link(settings.out, repository()), source), encoding="utf-8"
    )
    if settings.png or settings.svg:
        save_pictures(overview_chart(record), folder / "claims", settings)


def repository() -> str | None:
    """The address of the repository that the package's metadata names, if it names one."""
    try:
        addresses = metadata("uncollapse").get_all("Project-URL") or []
    except PackageNotFoundError:  # run from a folder that was never installed
        return None
    named = dict(line.split(", ", 1) for line in addresses if ", " in line)
    return next(
        (named[name].rstrip("/") for name in ("Repository", "Source", "source", "repository") if name in named), None
    )


def code_link(out: Path, base: str | None) -> Callable[[Mapping[str, Any]], str | None]:
    """From a check's file and line to an address: in the repository at `base`, else as a path from `out`."""

    def link(check: Mapping[str, Any]) -> str | None:
        if base:
            return f"{base}/blob/main/{check['file']}#L{check['line']}"
        file = locations.source_file(Path(check["file"]))
        return Path(os.path.relpath(file, out.resolve())).as_posix() if file.is_file() else None

    return link


def _table(rows: Sequence[Mapping[str, Any]], counts: Mapping[str, int]) -> str:
    """Counts by outcome, then one line for each claim."""
    totals = "\n".join(f"  {number:>4}  {outcome}" for outcome, number in counts.items())
    order = {outcome: position for position, outcome in enumerate(counts)}
    found = sorted(rows, key=lambda row: (row["paper"], order[row["outcome"]]))
    listed = text_table([(row["outcome"], row["id"], row["place"]) for row in found])
    return f"{len(rows)} statements\n{totals}\n\n{listed}"


COMMAND = Command(
    name="reproduce claims",
    summary="Check every statement of the two papers, and write the verdicts with their evidence.",
    example="uncollapse reproduce claims --only localization-eq7 --out my-claims",
    options=ClaimsOptions,
    run=run,
)
