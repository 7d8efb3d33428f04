"""The study of retrofits: its runs, and the table, picture and sentences made of them."""

from __future__ import annotations

from pathlib import Path

from ..figure import Result
from ..rescue.judging import RESCUED
from ..short_runs.network import RunSize
from ..short_runs.store import RunStore
from ..study import ShortRun
from .findings import RetrofitFindings, courses_of
from .plan import HOSTS, RATE, SEEDS, plan, trial_plan
from .record import short_run
from .words import evidence_of, sentences, summary

ID = "retrofit"


def runs(results: Path, size: RunSize | None) -> list[ShortRun]:
    """Every run: one a model, way and order of the batches."""
    return [short_run(one) for one in (plan() if size is None else trial_plan(size))]


def result(results: Path) -> Result:
    """From the runs that are kept."""
    from ..charts.retrofit_chart import retrofit_chart

    found = RetrofitFindings(courses_of(RunStore(results / ID)))
    told = sentences(found)
    return Result(
        table=found.losses,
        chart=retrofit_chart(found),
        sentences=told,
        reading_aid="All losses are of the same held-out text. The jump is what the remedy itself changes, before any "
        f"update. The control is the stock model, trained on with the same batches. A model has recovered at the first "
        f"measured update from which on its loss is never above {RESCUED:g} times that of the control.",
        summary=summary(found),
        settings={"rate": RATE, "seeds": len(SEEDS), "updates": {host.name: host.size.updates for host in HOSTS}},
        finding=told[0],
    )


def evidence(results: Path) -> dict[str, str]:
    """One sentence for each remedy."""
    return evidence_of(RetrofitFindings(courses_of(RunStore(results / ID))))
