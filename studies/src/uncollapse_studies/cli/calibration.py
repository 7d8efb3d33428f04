"""`uncollapse reproduce calibration`: thresholds of a diagnosis, and false and missed alarms of its verdicts."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from uncollapse.cli.command import Command, UserError, option
from uncollapse.cli.output import output_folder
from uncollapse.files import write

BEGIN, END = "<!-- calibration: written by uncollapse reproduce calibration -->", "<!-- end of calibration -->"


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of `uncollapse reproduce calibration`."""

    out: Path = option(Path("calibration"), "folder for the counts and the quantiles of healthy models")
    docs: Path | None = option(None, "a page whose tables between the calibration marks are written anew")
    usual: Path | None = option(None, "a file that gets the quantiles too: diagnosis/usual.json in a checkout")
    thresholds: Path | None = option(None, "a file that gets the thresholds too: diagnosis/thresholds.json")
    force: bool = option(False, "replace the files of an earlier run")


def run(settings: CalibrationOptions) -> int:
    """Plant, diagnose, choose thresholds on one half, count on both, write."""
    if settings.docs is not None:
        _check(settings.docs)
    with output_folder(settings.out, settings.force) as folder:  # refuses before any work is done
        from ..calibration.cases import measured
        from ..calibration.choosing import choose
        from ..calibration.own_runs import own_runs
        from ..calibration.tables import CalibrationTables

        cases = [*measured(lambda what: print(what, file=sys.stderr, flush=True)), *own_runs()]
        tables = CalibrationTables.of(cases, choose(cases))
        tables.write(folder)
        print(tables.markdown())
    if settings.docs is not None:
        _replace(settings.docs, (settings.out / "table.md").read_text(encoding="utf-8").strip())
    for name, copy in (("usual.json", settings.usual), ("thresholds.json", settings.thresholds)):
        if copy is not None:
            write(copy, (settings.out / name).read_text(encoding="utf-8"))
    print(f"\ncounts: {settings.out}")
    return 0


def _check(page: Path) -> None:
    """Refuse a page without a place for the tables before any work is done."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    if BEGIN not in text or END not in text:
        raise UserError(f"{page} has no place for the tables: a line {BEGIN} and a line {END} are needed.")


def _replace(page: Path, tables: str) -> None:
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    text = page.read_text(encoding="utf-8")
    write(page, between.sub(lambda _: f"{BEGIN}\n\n{tables}\n\n{END}", text))


COMMAND = Command(
    name="reproduce calibration",
    summary="Plant faults of nine kinds in many architectures: thresholds, false and missed alarms, margins.",
    example="uncollapse reproduce calibration --out calibration",
    options=CalibrationOptions,
    run=run,
)
