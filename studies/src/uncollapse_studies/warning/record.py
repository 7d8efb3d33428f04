"""What is kept of a watched run: held-out losses, and the scores of every measurement."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from ..short_runs.network import RunSize
from ..short_runs.store import RunRecord, definition_of
from ..short_runs.training import RunCourse, train
from ..study import ShortRun
from .plan import PlannedRun
from .scores import READINGS, SCORES, RunTables


def short_run(planned: PlannedRun, size: RunSize) -> ShortRun:
    """The run as a study has it."""
    return ShortRun(planned.name, definition_of(planned.run, size), partial(made, planned, size))


def made(planned: PlannedRun, size: RunSize) -> RunRecord:
    """Train, and keep what is needed."""
    course = train(planned.run, size)
    assert course.watch is not None
    watch = course.watch
    tables = RunTables(
        watch.heads, watch.layers, watch.optimizer, course.updates(), size.width, size.width // size.heads
    )
    return record_of(planned, course, tables)


def record_of(planned: PlannedRun, course: RunCourse, tables: RunTables) -> RunRecord:
    """A course as a record."""
    return {
        "cause": planned.cause,
        "half": planned.half,
        "onset": 1 if planned.run.fault is None else planned.run.fault.onset,
        "run": asdict(planned.run),
        "seconds": course.seconds,
        "steps": tables.steps,
        "held_out": course.held_out[: len(tables.steps)],
        "ended": len(course.losses),
        "scores": {name: score(tables) for name, score in (SCORES | READINGS).items()},
    }
