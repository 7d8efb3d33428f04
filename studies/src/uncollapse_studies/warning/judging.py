"""When a run fails, when a score tells, and how many updates lie between; thresholds come from one half of the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..short_runs.store import RunRecord, RunStore, numbers_of
from .plan import CHOOSE, HEALTHY

FAILED = 1.1  # times the held-out loss of the healthy twin
LASTING = 3  # measurements in a row
TOGETHER = "together"
PARTS = ("loss spike", "gradient norm rise", "update size", "logit bound")  # what is looked at together


@dataclass(frozen=True)
class Watched:
    """A run as a score sees it: its measurements, from the record of the run and that of its healthy twin."""

    name: str
    cause: str
    half: str
    onset: int
    steps: np.ndarray
    scores: Mapping[str, np.ndarray]
    failed: int | None  # the update from which on its loss is that of a run that fails; None if it does not

    @classmethod
    def of(cls, name: str, record: RunRecord, twin: RunRecord) -> Watched:
        """From two records."""
        scores = {score: numbers_of(values) for score, values in record["scores"].items()}
        about = (name, record["cause"], record["half"], record["onset"])
        return cls(*about, np.array(record["steps"]), scores, failing_update(record, twin))

    @property
    def healthy(self) -> bool:
        """Whether nothing was done to it."""
        return self.cause == HEALTHY

    def highest(self, score: str) -> float:
        """The highest that a score has been."""
        known = self.scores[score][~np.isnan(self.scores[score])]
        return float(known.max()) if len(known) else -math.inf

    def first_alarm(self, score: str, threshold: float) -> int | None:
        """The first measured update at which a score is above its threshold."""
        above = np.flatnonzero(self.scores[score] > threshold)
        return int(self.steps[above[0]]) if len(above) else None

    def lead(self, alarm: int | None) -> int:
        """Updates from an alarm to the failure; 0 if it is not in between, or came before anything was wrong."""
        if self.failed is None or alarm is None or alarm < self.onset:
            return 0
        return max(0, self.failed - alarm)


def failing_update(record: RunRecord, twin: RunRecord) -> int | None:
    """The first update of three measurements in a row with a loss 10 % above the twin's; or where it is not finite.

    >>> healthy = {"steps": [5, 10, 15, 20], "held_out": [2.0, 2.0, 2.0, 2.0]}
    >>> failing_update(healthy | {"held_out": [2.0, 2.3, 2.3, 2.3]}, healthy)
    10
    >>> failing_update(healthy | {"held_out": [2.3, 2.0, 2.3]}, healthy)
    15
    """
    own, other = numbers_of(record["held_out"]), numbers_of(twin["held_out"])
    above = ~(own <= FAILED * other[: len(own)])
    if len(own) < len(other):  # it ended where its loss was not finite
        above = np.concatenate([above, np.full(len(other) - len(own) + LASTING, True)])
    for place, step in enumerate(twin["steps"]):
        if len(above) >= place + LASTING and above[place : place + LASTING].all():
            return int(step)
    return None


def watched_runs(store: RunStore) -> list[Watched]:
    """Every run whose healthy twin is kept too, with the score of all parts together."""
    found = []
    for name, record in store.records.items():
        twin = store.records.get(f"{name.split()[0]} {HEALTHY}")
        if twin is not None:
            found.append(Watched.of(name, record, twin))
    usual = Usual.of([run for run in found if run.healthy and run.half == CHOOSE])
    return [replace(run, scores={**run.scores, TOGETHER: usual.together(run)}) for run in found]


@dataclass(frozen=True)
class Usual:
    """How high scores get in healthy runs: the highest, and the spread of the runs, so that scores can be compared."""

    highest: Mapping[str, float]
    spread: Mapping[str, float]  # between the quartiles of the highest score of each run

    @classmethod
    def of(cls, healthy: Sequence[Watched]) -> Usual:
        """From healthy runs."""
        names = healthy[0].scores if healthy else ()
        highest = {name: [run.highest(name) for run in healthy] for name in names}
        known = {name: [value for value in values if math.isfinite(value)] or [0.0] for name, values in highest.items()}
        spreads = {name: float(np.subtract(*np.quantile(values, (0.75, 0.25)))) for name, values in known.items()}
        return cls(
            {name: max(values) for name, values in known.items()},
            {name: max(spread, 1e-6) for name, spread in spreads.items()},
        )

    def beyond(self, run: Watched, score: str) -> np.ndarray:
        """How far a score is above the highest of healthy runs, in spreads; NaN where it is not known."""
        return np.asarray((run.scores[score] - self.highest[score]) / self.spread[score])

    def together(self, run: Watched) -> np.ndarray:
        """Of all parts, that which is furthest."""
        found: np.ndarray = np.fmax.reduce([self.beyond(run, part) for part in PARTS])
        return found


def threshold_for(healthy: Sequence[Watched], score: str, share: float) -> float:
    """The lowest threshold at which at most a share of healthy runs has an alarm."""
    highest = sorted((run.highest(score) for run in healthy), reverse=True)
    return highest[math.floor(share * len(highest))] if highest else math.inf
