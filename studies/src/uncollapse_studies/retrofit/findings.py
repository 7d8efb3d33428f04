"""What the runs say: the jump at update 0, when a model has recovered, and how it ends against the control."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from uncollapse.statistics import Estimate, SeedSummary, differences, summarise

from ..rescue.judging import RESCUED
from ..short_runs.store import RunRecord, RunStore, numbers_of
from .plan import CONTROL, HOSTS, RETROFITS

ROUNDING = 1e-5  # of a loss: sums of float32 in another order differ by a few 1e-7 of it


def recovered_after(steps: Sequence[int], shares: Iterable[float]) -> int | None:
    """The first update from which on the loss, as a share of the control's, stays below `RESCUED`; None if none is.

    >>> recovered_after([0, 10, 20, 30], [1.5, 1.1, 1.01, 1.0])
    20
    >>> recovered_after([0, 10, 20, 30], [1.0, 1.01, 1.1, 1.1]) is None
    True
    """
    above = np.flatnonzero(~(np.asarray([*shares]) <= RESCUED))  # what is no number is above
    first = int(above[-1]) + 1 if len(above) else 0
    return int(steps[first]) if first < len(steps) else None


@dataclass(frozen=True)
class RetrofitCourse:
    """The held-out losses of one run, as changes of the one before the remedy."""

    host: str
    label: str
    seed: int
    stock: float
    steps: Sequence[int]
    changes: np.ndarray
    moved: float  # NaN if the remedy has no parameters

    @classmethod
    def of(cls, record: RunRecord) -> RetrofitCourse:
        """From a record."""
        about = record["host"], record["retrofit"], record["seed"], record["stock"], record["steps"]
        return cls(*about, numbers_of(record["changes"]), *numbers_of([record["moved"]]))

    @property
    def jump(self) -> float:
        """What the remedy itself does to the loss."""
        return float(self.changes[0])

    @property
    def final(self) -> float:
        """The loss after the last update."""
        return float(self.losses[-1])

    @property
    def losses(self) -> np.ndarray:
        """At each measured update."""
        return self.stock + self.changes

    def recovered(self, control: RetrofitCourse) -> int | None:
        """When it is back for good where the stock model is that was trained on with the same batches."""
        return recovered_after(self.steps, self.losses / control.losses)


def courses_of(store: RunStore) -> list[RetrofitCourse]:
    """Every run that is kept."""
    return [RetrofitCourse.of(record) for record in store.records.values()]


@dataclass(frozen=True)
class RetrofitFindings:
    """All runs, by model and way."""

    courses: Sequence[RetrofitCourse]

    @cached_property
    def hosts(self) -> list[str]:
        """The models that have a control, without which nothing can be said."""
        there = {course.host for course in self.courses if course.label == CONTROL}
        return [host.name for host in HOSTS if host.name in there]

    def labels(self, host: str) -> list[str]:
        """The ways that were run with a model, the control first."""
        there = {course.label for course in self.courses if course.host == host}
        return [way.label for way in RETROFITS if way.label in there]

    def of(self, host: str, label: str) -> list[RetrofitCourse]:
        """The runs of one model and way, by seed."""
        own = [course for course in self.courses if (course.host, course.label) == (host, label)]
        return sorted(own, key=lambda course: course.seed)

    def recovered(self, host: str, label: str) -> list[int | None]:
        """When each run has recovered; those whose control is missing are left out."""
        controls = {course.seed: course for course in self.of(host, CONTROL)}
        own = [course for course in self.of(host, label) if course.seed in controls]
        return [course.recovered(controls[course.seed]) for course in own]

    def jump(self, host: str, label: str) -> float:
        """The mean over the orders; only a fit to the first batch depends on them."""
        return float(np.mean([course.jump for course in self.of(host, label)]))

    def final(self, host: str, label: str) -> SeedSummary | None:
        """The loss after the last update; None if a run diverged."""
        values = [course.final for course in self.of(host, label)]
        return summarise(values) if np.isfinite(values).all() else None

    @cached_property
    def against(self) -> dict[tuple[str, str], Estimate]:
        """Final losses less that of the control, with Holm's correction over what was put into a model."""
        found: dict[tuple[str, str], Estimate] = {}
        for host in self.hosts:
            finals = {label: self.final(host, label) for label in self.labels(host)}
            base, known = finals.pop(CONTROL), {label: own for label, own in finals.items() if own is not None}
            if base is not None:
                found |= {(host, label): gap for label, gap in differences(base, known).items()}
        return found

    @cached_property
    def losses(self) -> pd.DataFrame:
        """All numbers, tidy: one row for each run and measured update."""
        rows = [
            (course.host, course.label, course.seed, step, loss, change)
            for course in self.courses
            for step, loss, change in zip(course.steps, course.losses, course.changes, strict=True)
        ]
        return pd.DataFrame(rows, columns=["model", "retrofit", "seed", "update", "loss", "change"])
