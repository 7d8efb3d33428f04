"""What is kept of a treated run: when it was treated, and its held-out losses."""

from __future__ import annotations

from functools import partial

from ..short_runs.network import RunSize
from ..short_runs.store import RunRecord, definition_of
from ..study import ShortRun
from .plan import TreatedRun
from .treatment import NOTHING, train_treated


def short_run(one: TreatedRun, size: RunSize) -> ShortRun:
    """The run as a study has it."""
    definition = definition_of(one.planned.run, size, one.branch, f"at {one.alarm}, failed {one.pair.failed}")
    return ShortRun(one.name, definition, partial(made, one, size))


def made(one: TreatedRun, size: RunSize) -> RunRecord:
    """Train, and keep what is needed; a healthy run that goes on as it is also shows its largest logit."""
    watched = one.healthy and one.branch.name == NOTHING
    course = train_treated(one.planned.run, size, one.branch, one.alarm, watched=watched)
    record = {
        "run": one.planned.name,
        "twin": one.pair.healthy.name,
        "cause": one.pair.failing.cause,
        "half": one.pair.failing.half,
        "healthy": one.healthy,
        "branch": one.branch.name,
        "alarm": one.alarm,
        "failed": one.pair.failed,
        "in_time": one.pair.in_time,
        "seconds": course.seconds,
        "held_out": course.held_out,
    }
    if course.watch is not None:
        record["largest_logit"] = float(course.watch.heads["logit_max"].max())
    return record
