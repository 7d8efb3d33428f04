"""Two runs against each other in one process: alternating, and the best of the rounds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[], object]


@dataclass(frozen=True)
class Timings:
    """The seconds of each round, of the run and of the one it is compared with."""

    seconds: tuple[float, ...]
    against: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Best over best: noise only ever adds time, so the least is nearest to the truth."""
        return min(self.seconds) / min(self.against)

    @property
    def median_ratio(self) -> float:
        """The middle one of the rounds' own ratios: what a noisy machine does to the figure."""
        return statistics.median(ours / theirs for ours, theirs in zip(self.seconds, self.against, strict=True))


def race(run: Run, against: Run, rounds: int, budget: float = float("inf")) -> Timings:
    """Time `against` and `run` in turn, `rounds` times; no new round starts after `budget` seconds.

    Whoever calls has run both before: neither a first call's set-up nor its fresh memory is to be timed.

    >>> result = race(lambda: sum(range(9)), lambda: sum(range(9)), rounds=3)
    >>> len(result.seconds), len(result.against)
    (3, 3)
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}.")
    gc.collect()
    seconds: list[float] = []
    others: list[float] = []
    started = time.perf_counter()
    while len(seconds) < rounds and (not seconds or time.perf_counter() - started < budget):
        others.append(timed(against))
        seconds.append(timed(run))
    return Timings(tuple(seconds), tuple(others))


def timed(run: Run) -> float:
    """Seconds of one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
