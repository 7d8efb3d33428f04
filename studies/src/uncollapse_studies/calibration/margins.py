"""Where each threshold lies between healthy models and planted faults, and from which strength on a fault is found."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from uncollapse.diagnosis.thresholds import Thresholds

from .cases import PARTS, Case
from .choosing import values
from .faults import GRADED
from .quantities import QUANTITIES


def margins(cases: Sequence[Case], by: Thresholds) -> pd.DataFrame:
    """By quantity and part: the healthy value nearest to the threshold, the faulty one nearest to it, and factors."""
    lines = []
    for quantity in QUANTITIES.values():
        threshold, above = getattr(by, quantity.threshold), quantity.faulty == "above"
        for part in PARTS:
            good, bad = values([case for case in cases if case.part == part], quantity, by)
            healthy = (max if above else min)(good, default=math.nan)
            broken = (min if above else max)(bad, default=math.nan)
            low, high = (healthy, broken) if above else (broken, healthy)
            lines.append(
                {
                    "verdict": quantity.verdict,
                    "quantity": quantity.words,
                    "part": part,
                    "healthy": healthy,
                    "threshold": threshold,
                    "faulty": broken,
                    "healthy_margin": _factor(threshold, healthy, above),
                    "faulty_margin": _factor(threshold, broken, not above),
                    "between": bool(not low >= threshold and not high <= threshold),
                }
            )
    return pd.DataFrame(lines)


def _factor(threshold: float, value: float, below: bool) -> float:
    """By which factor the value is on its side of the threshold."""
    over, under = (threshold, value) if below else (value, threshold)
    return over / under if under else math.inf


def graded(rows: pd.DataFrame) -> pd.DataFrame:
    """By strength of a fault: in how many models it was found, by part and in trained ones."""
    lines = []
    for name, series in GRADED.items():
        of_series = rows[rows["case"] == name]
        for strength in series.strengths:
            some = of_series[of_series["strength"] == strength]
            groups = {part: some[some["part"] == part] for part in PARTS}
            groups["trained"] = some[some["weights"] == "trained"]
            found = {group: f"{int(table['named'].sum())} of {len(table)}" for group, table in groups.items()}
            counted = {"counted": strength in series.counted, "median": some[series.shows].median()}
            lines.append({"fault": name, "strength": strength, **found, **counted})
    return pd.DataFrame(lines)
