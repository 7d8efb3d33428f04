"""`uncollapse reproduce claims`: check every statement of the two papers and write what was found."""

from __future__ import annotations

import csv
import difflib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uncollapse.cli.command import UserError
from uncollapse.cli.output import output_folder

if TYPE_CHECKING:
    from ..audit.claim import Claim
    from .reproduce import Settings

COLUMNS = (
    "id",
    "paper",
    "place",
    "verdict",
    "statement",
    "evidence",
    "how",
    "standard_error",
    "corrected",
    "survives",
    "consequence",
)


def run_claims(settings: Settings) -> int:
    """Check the claims and write them; 0 whatever the verdicts, 1 if a check crashed."""
    from ..audit.claim import ERROR, AuditRun
    from ..audit.registry import claims

    chosen = _chosen(claims(), settings.only)
    out = settings.out or Path("claims")
    with output_folder(out, settings.force) as folder:  # refuses before any work is done
        from tqdm import tqdm

        from ..audit.audit import PAPERS, audit, counts
        from .reproduce import circumstances

        run = AuditRun(size="smallest" if settings.quick else "full", cells=settings.cells)
        started = time.perf_counter()
        with tqdm(total=len(chosen), desc="claims", disable=not sys.stderr.isatty(), leave=False) as bar:
            rows = audit(chosen, run, bar.update)
        about = circumstances(settings, {"seed": run.seed}, time.perf_counter() - started)
        record = {**about, "papers": PAPERS, "counts": counts(rows), "claims": rows}
        _write(record, folder, out, settings)
        written = sorted(file.name for file in folder.iterdir())
    print(_table(rows, record["counts"]))
    print(f"\n{out}: {', '.join(written)}")
    crashed = [row["id"] for row in rows if row["verdict"] == ERROR]
    if crashed:
        print(
            f"uncollapse reproduce: {len(crashed)} checks crashed, which is a bug: {', '.join(crashed)}.",
            file=sys.stderr,
        )
    return 1 if crashed else 0


def _chosen(every: Mapping[str, Claim], only: str | None) -> list[Claim]:
    """The claims that --only names: one by its id, or all that begin like it."""
    if only is None or only in every:
        return list(every.values()) if only is None else [every[only]]
    chosen = [claim for id, claim in every.items() if id.startswith(only)]
    if not chosen:
        near = difflib.get_close_matches(only, every, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}?" if near else "see docs/claims.md for all of them."
        raise UserError(f"there is no claim {only!r}; {hint}")
    return chosen


def _write(record: Mapping[str, Any], folder: Path, out: Path, settings: Settings) -> None:
    from ..charts.claims_chart import overview_chart
    from ..charts.claims_markdown import claims_markdown
    from ..charts.claims_page import claims_page

    (folder / "claims.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "claims.md").write_text(claims_markdown(record), encoding="utf-8")
    with (folder / "claims.csv").open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, COLUMNS, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(record["claims"])
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    source = f"uncollapse reproduce claims, seed {record['settings']['seed']}, {record['seconds']:.0f} s; {versions}."
    (folder / "claims.html").write_text(claims_page(record, code_link(out), source), encoding="utf-8")
    names = {paper: about["authors"] for paper, about in record["papers"].items()}
    for wanted, suffix in ((settings.png, "png"), (settings.svg, "svg")):
        if wanted:
            chart = overview_chart(record["claims"], names)
            chart.save(folder / f"claims.{suffix}", scale_factor=2 if suffix == "png" else 1)


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


def code_link(out: Path) -> Callable[[Mapping[str, Any]], str | None]:
    """From a check's file and line to an address: in the repository if it is known, else a relative path."""
    base, root = repository(), Path(__file__).resolve().parents[4]

    def link(check: Mapping[str, Any]) -> str | None:
        if base:
            return f"{base}/blob/main/{check['file']}#L{check['line']}"
        file = root / check["file"]
        return Path(os.path.relpath(file, out.resolve())).as_posix() if file.is_file() else None

    return link


def _table(rows: Sequence[Mapping[str, Any]], counts: Mapping[str, int]) -> str:
    """Counts by verdict, then one line a claim."""
    wide = max(len(verdict) for verdict in counts)
    ids = max(len(row["id"]) for row in rows)
    lines = [f"{len(rows)} statements", *(f"  {number:>4}  {verdict}" for verdict, number in counts.items()), ""]
    order = {verdict: place for place, verdict in enumerate(counts)}
    for row in sorted(rows, key=lambda row: (row["paper"], order[row["verdict"]])):
        lines.append(f"{row['verdict']:<{wide}}  {row['id']:<{ids}}  {row['place']}")
    return "\n".join(lines)
