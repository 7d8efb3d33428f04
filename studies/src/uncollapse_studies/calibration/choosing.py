"""Thresholds from data: in the middle, by factors, between the healthy and the faulty models of one half."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from uncollapse.diagnosis.thresholds import CHOSEN, Thresholds

from .cases import PARTS, Case
from .quantities import QUANTITIES, Quantity

DIGITS = 2


def choose(cases: Sequence[Case], part: str = PARTS[0]) -> Thresholds:
    """The thresholds that one half of the cases gives; one that it says nothing of stays as it is."""
    chosen = CHOSEN
    of_part = [case for case in cases if case.part == part]
    for quantity in QUANTITIES.values():
        healthy, faulty = values(of_part, quantity, chosen)
        found = between(healthy, faulty, quantity.faulty)
        if found is not None:
            chosen = replace(chosen, **{quantity.threshold: found})
    return chosen


def values(cases: Sequence[Case], quantity: Quantity, by: Thresholds) -> tuple[list[float], list[float]]:
    """The quantity in healthy models, and in those with a fault that it has to show; without what has no value."""
    healthy = [quantity.worst(case.report, by) for case in cases if not case.fault]
    faulty = [
        quantity.worst(case.report, by)
        for case in cases
        if case.counted and case.case in quantity.faults and case.model not in quantity.without
    ]
    good, bad = ([value for value in found if not math.isnan(value)] for found in (healthy, faulty))
    return good, bad


def between(healthy: Sequence[float], faulty: Sequence[float], side: Literal["above", "below"]) -> float | None:
    """The value that misses no fault with the fewest false alarms and, among those, has the widest margins.

    That is the geometric mean of the mildest fault and the nearest healthy value on its good side. None where one of
    them is missing, or zero.

    >>> between([1.0, 4.0], [9.0, 100.0], "above"), between([1.0, 4.0, 50.0], [9.0, 100.0], "above")
    (6.0, 6.0)
    >>> between([0.8, 0.4], [0.1, 0.001], "below"), between([], [9.0], "above")
    (0.2, None)
    """
    if not faulty:
        return None
    mildest = min(faulty) if side == "above" else max(faulty)
    good = [value for value in healthy if (value < mildest if side == "above" else value > mildest)]
    if not good:
        return None
    nearest = max(good) if side == "above" else min(good)
    middle = math.sqrt(nearest * mildest)
    return float(f"{middle:.{DIGITS}g}") if middle > 0 else None
