"""`uncollapse reproduce calibration`: false and missed alarms of the verdicts of a diagnosis."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from uncollapse.cli.command import Command, UserError, option
from uncollapse.cli.output import output_folder

BEGIN, END = "<!-- calibration: written by uncollapse reproduce calibration -->", "<!-- end of calibration -->"


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of `uncollapse reproduce calibration`."""

    out: Path = option(Path("calibration"), "folder for the counts and the quantiles of healthy models")
    docs: Path | None = option(None, "a page whose tables between the calibration marks are written anew")
    usual: Path | None = option(None, "a file that gets the quantiles too: diagnosis/usual.json in a checkout")
    force: bool = option(False, "replace the files of an earlier run")


def run(settings: CalibrationOptions) -> int:
    """Plant, diagnose, count, write."""
    with output_folder(settings.out, settings.force) as folder:  # refuses before any work is done
        from ..calibration.counting import count
        from ..calibration.tables import markdown, write

        rows, quantiles = count(lambda what: print(what, file=sys.stderr, flush=True))
        write(folder, rows, quantiles)
        print(markdown(rows))
    if settings.docs is not None:
        _replace(settings.docs, (settings.out / "table.md").read_text(encoding="utf-8").strip())
    if settings.usual is not None:
        settings.usual.write_text((settings.out / "usual.json").read_text(encoding="utf-8"), encoding="utf-8")
    print(f"\ncounts: {settings.out}")
    return 0


def _replace(page: Path, table: str) -> None:
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise UserError(f"{page} has no place for the table: a line {BEGIN} and a line {END} are needed.")
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    page.write_text(between.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text), encoding="utf-8")


COMMAND = Command(
    name="reproduce calibration",
    summary="Plant faults of eight kinds in many architectures: false and missed alarms, and margins of thresholds.",
    example="uncollapse reproduce calibration --out calibration",
    options=CalibrationOptions,
    run=run,
)
