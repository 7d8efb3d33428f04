"""A finished run as numbers, and what can be asked of one: when it reaches an accuracy, and whether it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..short_runs.store import RunStore, numbers_of
from .network import Guess
from .plan import NORM_FREE, SKIP_FREE, NetworkKey, PlanSize

CLEAR = (
    0.1  # below a guess: some four standard errors of the loss on a thousand held-out images, whose spread is near 1
)


@dataclass(frozen=True)
class DepthCourse:
    """One run; from where its loss was not finite it counts as a guess."""

    part: str
    method: str
    layers: int
    seed: int
    rate: float
    updates: int  # that it should have had
    ended: int
    steps: np.ndarray
    losses: np.ndarray
    accuracies: np.ndarray
    guess: Guess

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> DepthCourse:
        """From the record that is kept."""
        about = {key: record[key] for key in ("part", "method", "layers", "seed", "rate", "updates", "ended")}
        return cls(
            **about,
            steps=np.array(record["steps"], dtype=int),
            losses=numbers_of(record["loss"]),
            accuracies=numbers_of(record["accuracy"]),
            guess=Guess(**record["guess"]),
        )

    @property
    def key(self) -> NetworkKey:
        """What has a rate of its own."""
        return self.part, self.layers, self.method

    @property
    def diverged(self) -> bool:
        """Whether it ended before its time, or in a loss that is not finite."""
        return self.ended < self.updates or not np.isfinite(self.losses[-1:]).all()

    def accuracy(self, update: int) -> float:
        """The held-out accuracy that was measured last at or before an update."""
        before = int(np.searchsorted(self.steps, update, side="right"))
        if before == 0 or (self.diverged and update >= self.ended):
            return self.guess.accuracy
        return float(self.accuracies[before - 1])

    @property
    def last_accuracy(self) -> float:
        """At the end."""
        return self.accuracy(self.updates)

    @property
    def last_loss(self) -> float:
        """At the end, and never above that of a guess."""
        if self.diverged or not len(self.losses):
            return self.guess.loss
        return min(float(self.losses[-1]), self.guess.loss)


def trained_runs(store: RunStore) -> list[DepthCourse]:
    """All that are kept."""
    return [DepthCourse.of(record) for record in store.records.values()]


def updates_to_reach(run: DepthCourse, accuracy: float) -> int | None:
    """The first measured update at which a run is at least as good; None if it never is."""
    there = np.flatnonzero(run.accuracies >= accuracy)
    return int(run.steps[there[0]]) if len(there) else None


def trains(run: DepthCourse) -> bool:
    """Whether its held-out loss at the end is clearly below that of a guess."""
    return run.last_loss <= run.guess.loss - CLEAR


def at_best_rate(runs: Sequence[DepthCourse], rates: Iterable[float]) -> list[DepthCourse]:
    """The runs of one method, one a seed, at the rate that was best with the first; none unless that tried all rates.

    Accuracy decides, or the loss without norms, where accuracies may all be those of a guess.
    """
    wanted, first = set(rates), [run for run in runs if run.seed == 0]
    if not first or {run.rate for run in first} < wanted:
        return []
    best = max(first, key=lambda run: -run.last_loss if run.part == NORM_FREE else run.last_accuracy)
    return sorted((run for run in runs if run.rate == best.rate), key=lambda run: run.seed)


def best_rates(runs: Sequence[DepthCourse], size: PlanSize) -> dict[NetworkKey, float]:
    """The rate of each part, depth and method whose rates have all been tried."""
    found = {}
    for key in {run.key for run in runs}:
        rates = size.rates if key[0] == SKIP_FREE else size.norm_free_rates
        chosen = at_best_rate([run for run in runs if run.key == key], rates)
        if chosen:
            found[key] = chosen[0].rate
    return found
