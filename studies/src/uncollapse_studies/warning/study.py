"""The study of early warning: its runs, and the table, picture and sentences made of them."""

from __future__ import annotations

from pathlib import Path

from ..figure import Result
from ..short_runs.network import RunSize
from ..short_runs.store import RunStore
from ..study import ShortRun
from .findings import Findings
from .judging import watched_runs
from .plan import PAIRS, TRIAL, plan
from .record import short_run

ID = "warning"


def runs(results: Path, size: RunSize | None) -> list[ShortRun]:
    """Every run, the healthy twin of a pair first."""
    planned = plan() if size is None else plan(TRIAL, size.updates)
    return [short_run(one, size or RunSize()) for one in planned]


def result(results: Path) -> Result:
    """From the runs that are kept."""
    from ..charts.warning_chart import warning_chart

    found = Findings(watched_runs(RunStore(results / ID)))
    return Result(
        table=found.leads,
        chart=warning_chart(found),
        sentences=found.sentences(),
        reading_aid="A lead is the part of the run between the first alarm and the failure, and 0 where it comes "
        "too late, before the fault, or not at all. A score's threshold lets the said share of the healthy runs of the "
        "other half of the seeds have a false alarm; how many have one on this half stands in the table.",
        summary=found.table(),
        settings={"pairs": PAIRS, "updates": RunSize().updates},
        finding=found.sentences()[0],
    )
