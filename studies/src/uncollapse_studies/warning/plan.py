"""The runs of the study: pairs of a run that is made to fail and its healthy twin, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..short_runs.faults import CAUSES, CORRUPT, FROZEN, RATE, ROUNDING, SCALE, WARMUP, PlantedFault
from ..short_runs.network import RunSize
from ..short_runs.training import RunSettings

PAIRS = 108
TRIAL = (0, len(CAUSES))  # seeds of a trial: one pair in each half
CHOOSE, REPORT = "choose", "report"  # halves: thresholds are chosen on one, and all that is said is of the other
HEALTHY = "healthy"


@dataclass(frozen=True)
class PlannedRun:
    """A run, and the half that its seed is in."""

    name: str
    half: str
    run: RunSettings

    @property
    def cause(self) -> str:
        """What is wrong with it; "healthy" if nothing is."""
        return HEALTHY if self.run.fault is None else self.run.fault.cause


def plan(seeds: Iterable[int] = range(PAIRS), updates: int = RunSize().updates) -> list[PlannedRun]:
    """Each pair has a seed, a rate, a warm-up and a fault of its own; causes take turns, and so do the halves.

    >>> [(one.name, one.half) for one in plan([7])]
    [('007 healthy', 'report'), ('007 no warm-up', 'report')]
    """
    found = []
    for seed in seeds:
        half = (CHOOSE, REPORT)[seed // len(CAUSES) % 2]
        failing = _drawn(CAUSES[seed % len(CAUSES)], seed, updates)
        for one in (replace(failing, fault=None), failing):
            cause = HEALTHY if one.fault is None else one.fault.cause
            found.append(PlannedRun(f"{seed:03d} {cause}", half, one))
    return found


def _drawn(cause: str, seed: int, updates: int) -> RunSettings:
    draw = random.Random(seed)
    rates = HIGH_RATES if cause == WARMUP else RATES  # where a warm-up makes the difference
    rate, warmup = _between(draw, *rates), draw.randint(8, 20)
    first, last = ONSETS[cause]
    onset = draw.randint(max(1, round(first * updates)), max(1, round(last * updates)))
    return RunSettings(seed, rate, warmup, PlantedFault(cause, onset, STRENGTHS[cause](draw)))


def _between(draw: random.Random, low: float, high: float) -> float:
    """A number between two, even on a logarithmic scale."""
    return float(f"{low * (high / low) ** draw.random():.3g}")


RATES, HIGH_RATES = (2e-3, 1e-2), (1.5e-2, 3e-2)
ONSETS = {  # as shares of the run
    RATE: (0.0, 0.0),
    WARMUP: (0.0, 0.0),
    SCALE: (0.1, 0.5),
    ROUNDING: (0.1, 0.35),
    CORRUPT: (0.2, 0.6),
    FROZEN: (0.03, 0.2),
}
STRENGTHS: dict[str, Callable[[random.Random], float]] = {
    RATE: lambda draw: _between(draw, 8, 40),
    WARMUP: lambda draw: 0.0,
    SCALE: lambda draw: _between(draw, 2, 5),
    ROUNDING: lambda draw: 2.0 ** draw.randint(10, 14),
    CORRUPT: lambda draw: float(draw.randint(5, 15)),
    FROZEN: lambda draw: 0.0,
}
