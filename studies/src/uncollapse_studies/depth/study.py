"""The study of networks without residual connections and without norms: its runs, and what is made of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..figure import Result
from ..short_runs.network import RunSize
from ..short_runs.store import RunStore, definition_of
from ..study import ShortRun
from . import words
from .findings import DepthFindings
from .network import NetSize
from .plan import FULL, TRIAL, DepthRun, count, plan
from .record import CLEAR, best_rates, trained_runs
from .training import train

ID = "remedies-depth"


def runs(results: Path, size: RunSize | None) -> list[ShortRun]:
    """The runs that are known: seed 0 with all rates, and the other seeds where its runs have chosen a rate.

    A size, which is one of a language model, asks for this study's own trial.
    """
    chosen = FULL if size is None else TRIAL
    best = best_rates(trained_runs(RunStore(results / ID)), chosen)
    return [short_run(run, chosen.network) for run in plan(chosen, best)]


def short_run(run: DepthRun, size: NetSize) -> ShortRun:
    """The run as a study has it."""
    return ShortRun(run.name, definition_of(run, size), partial(train, run, size))


def result(results: Path) -> Result:
    """From the runs that are kept."""
    from ..charts.depth_chart import depth_chart

    found, planned = DepthFindings(trained_runs(RunStore(results / ID))), count()
    told = words.sentences(found, FULL, planned)
    return Result(
        table=found.curves(),
        chart=depth_chart(found),
        sentences=told,
        reading_aid="A network reaches an accuracy at the first measured update at which it is at least as good as the "
        "net with residual connections of the same seed is at its end, whose updates are half as many. A network "
        f"trains if its held-out loss ends at least {CLEAR:g} below that of the class frequencies; "
        "one that does not counts as a guess in the accuracies at the end.",
        summary=found.table(),
        settings={"runs": planned, "seeds": FULL.seeds, "updates": FULL.updates},
        finding=told[0],
    )


def evidence(results: Path) -> dict[str, str]:
    """One sentence for each remedy that has several seeds."""
    return words.evidence(DepthFindings(trained_runs(RunStore(results / ID))))
