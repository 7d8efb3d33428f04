"""Times of two workloads that alternate in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Workload = Callable[[], object]


@dataclass(frozen=True)
class Timings:
    """Seconds of each round, for a workload and for its baseline."""

    seconds: tuple[float, ...]
    against: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Ratio of the minima: noise only ever adds time, so the minimum is the best estimate."""
        return min(self.seconds) / min(self.against)

    @property
    def median_ratio(self) -> float:
        """Median of the ratios of the rounds; far from `ratio` on a noisy machine."""
        return statistics.median(ours / theirs for ours, theirs in zip(self.seconds, self.against, strict=True))


def time_alternately(run: Workload, against: Workload, rounds: int, budget: float = float("inf")) -> Timings:
    """Time `against` and `run` in turn, `rounds` times; no new round starts after `budget` seconds.

    The one that begins a round ends the next, so that neither always finds the other's memory in the caches. Run both
    once before, so that neither set-up nor first allocations are timed.

    >>> result = time_alternately(lambda: sum(range(9)), lambda: sum(range(9)), rounds=3)
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
        order = [(others, against), (seconds, run)]
        for times, workload in order if len(seconds) % 2 == 0 else reversed(order):
            times.append(timed(workload))
    return Timings(tuple(seconds), tuple(others))


def timed(run: Workload) -> float:
    """Seconds of one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
