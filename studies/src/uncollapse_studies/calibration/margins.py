"""Where each threshold lies between healthy models and planted faults, and from which strength on a fault is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from uncollapse.diagnosis import Diagnosis
from uncollapse.diagnosis.thresholds import (
    ALIGNED_SHARE,
    LOW_ENTROPY,
    RESIDUAL_SHARE,
    SATURATED_GAP,
    UNIFORM_SPREAD,
)

from .faults import GRADED

BIASED = ("bloom", "falcon_alibi", "gpt_oss", "swin", "t5")  # position biases and sinks differ when queries are zero
PARTS = ("seen", "held out")


@dataclass(frozen=True)
class Quantity:
    """A number of a whole model that a verdict compares with a threshold: its worst head or layer."""

    words: str
    verdict: str
    threshold: float
    faulty: Literal["above", "below"]
    worst: Callable[[Diagnosis], float]
    healthy_case: str = ""  # the only harmless change that may not move this number, if not all
    faulty_case: str = ""  # the only fault of the verdict that this number can show, if not all


def _gap(report: Diagnosis) -> float:
    heads = report.heads
    return float(heads.loc[heads["entropy_normalised"] < LOW_ENTROPY, "gap_mean"].max()) if len(heads) else math.nan


def _residual(report: Diagnosis) -> float:
    layers = report.layers
    return float(layers.loc[layers["cosine_aligned"] > ALIGNED_SHARE, "residual_frobenius"].min())


QUANTITIES = {
    "gap": Quantity(
        "mean gap of a head that uses under 5 % of its entropy", "entropy collapse", SATURATED_GAP, "above", _gap
    ),
    "aligned": Quantity(
        "aligned token pairs of a layer, models as they are",
        "rank collapse",
        ALIGNED_SHARE,
        "above",
        lambda report: float(report.layers["cosine_aligned"].max()),
        healthy_case="as it is",  # a large coordinate in common aligns tokens; the next number tells it apart
    ),
    "residual": Quantity(
        "what is left after centring, of a layer with aligned tokens",
        "rank collapse",
        RESIDUAL_SHARE,
        "below",
        _residual,
    ),
    "spread": Quantity(
        "largest distance of a score from its row's mean, of a head",
        "dead attention",
        UNIFORM_SPREAD,
        "below",
        lambda report: float(report.heads["spread_max"].min()) if len(report.heads) else math.nan,
        faulty_case="queries of one layer zero",
    ),
}


def numbers(report: Diagnosis) -> dict[str, float]:
    """The quantities of one report, NaN where no head or layer qualifies; and what a graded fault does to it."""
    worst = {name: quantity.worst(report) for name, quantity in QUANTITIES.items()}
    strength = {
        "any_gap": float(report.heads["gap_mean"].max()) if len(report.heads) else math.nan,
        "any_residual": float(report.layers["residual_frobenius"].min()),
    }
    return worst | strength


def margins(rows: pd.DataFrame) -> pd.DataFrame:
    """By quantity and part: the healthy value nearest to the threshold, the faulty one nearest to it, and factors."""
    lines = []
    for name, quantity in QUANTITIES.items():
        faulty = rows[rows["counted"] & (rows["fault"] == quantity.verdict)]
        if quantity.faulty_case:
            faulty = faulty[(faulty["case"] == quantity.faulty_case) & ~faulty["model"].isin(BIASED)]
        harmless = rows[rows["fault"] == ""]
        if quantity.healthy_case:
            harmless = harmless[harmless["case"] == quantity.healthy_case]
        for part in PARTS:
            good, bad = (table.loc[table["part"] == part, name].dropna() for table in (harmless, faulty))
            above = quantity.faulty == "above"
            healthy, broken = (good.max(), bad.min()) if above else (good.min(), bad.max())
            low, high = (healthy, broken) if above else (broken, healthy)
            lines.append(
                {
                    "verdict": quantity.verdict,
                    "quantity": quantity.words,
                    "part": part,
                    "healthy": healthy,
                    "threshold": quantity.threshold,
                    "faulty": broken,
                    "healthy_margin": _factor(quantity.threshold, healthy, above),
                    "faulty_margin": _factor(quantity.threshold, broken, not above),
                    "between": bool(not low >= quantity.threshold and not high <= quantity.threshold),
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
            lines.append({"fault": name, "strength": strength, **found, "median": some[series.shows].median()})
    return pd.DataFrame(lines)
