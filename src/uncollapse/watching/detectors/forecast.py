"""What is coming: heads whose logits grow by a factor in a fixed number of updates, and when they saturate.

A head is saturated as in `diagnosis/thresholds.py`: the mean gap between a row's two largest scores is above
SATURATED_GAP, from where no gradient to speak of passes the softmax. Gaps are judged, since softmax ignores a constant
that is added to a row; the largest logit and its doubling time are told beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from uncollapse.diagnosis.advice import advice
from uncollapse.diagnosis.thresholds import SATURATED_GAP

from ..alarm import Alarm
from ..recent import Recent

POINTS = 8  # measurements of a trend
FEWEST = 5
SURE = 4.0  # standard errors by which a slope is above zero
NEAR = SATURATED_GAP / 4  # smaller gaps are those of heads that learn; two doublings lie between
REACH = 2.0  # a trend is carried on for at most this many times its own span


@dataclass(frozen=True)
class Trend:
    """Lines through the logarithms of columns, (heads,) each: slope an update, its standard error, and the end."""

    slope: np.ndarray
    error: np.ndarray
    last: np.ndarray  # the value of the line at the last step

    @property
    def grows(self) -> np.ndarray:
        """Where the slope is above zero beyond doubt."""
        return np.asarray((self.slope > 0) & (self.slope > SURE * self.error))


def trend(steps: np.ndarray, values: np.ndarray) -> Trend:
    """Log-linear trend of values (steps, heads); a column with a value that is not positive has no trend.

    >>> steps = np.arange(0, 500, 50.0)
    >>> found = trend(steps, 2.0 ** (steps / 180)[:, None])
    >>> round(math.log(2) / found.slope[0])
    180
    """
    usable = (values > 0).all(axis=0) & np.isfinite(values).all(axis=0)
    logs = np.log(np.where(usable, values, 1.0))
    x = steps - steps.mean()
    slope = x @ logs / (x @ x)
    rest = logs - logs.mean(axis=0) - np.outer(x, slope)
    freedom = max(1, len(steps) - 2)
    error = np.sqrt((rest**2).sum(axis=0) / freedom / (x @ x))
    last = np.exp(logs.mean(axis=0) + slope * x[-1])
    return Trend(np.where(usable, slope, np.nan), error, last)


def forecast(recent: Recent) -> list[Alarm]:
    """The heads whose mean gap reaches saturation, if the trend of the last measurements goes on."""
    heads = recent.heads
    if heads.empty or "gap_mean" not in heads:
        return []
    gaps = by_step(heads, "gap_mean")
    if len(gaps) < FEWEST:
        return []
    steps = gaps.index.to_numpy(dtype=float)
    of_gaps = trend(steps, gaps.to_numpy())
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = np.log(SATURATED_GAP / of_gaps.last) / of_gaps.slope
    near = of_gaps.grows & (of_gaps.last >= NEAR) & (of_gaps.last < SATURATED_GAP)
    coming = np.flatnonzero(near & (ahead <= REACH * (steps[-1] - steps[0])))
    if not len(coming):
        return []
    coming = coming[np.argsort(ahead[coming])]
    places = [(int(layer), int(head)) for layer, head in gaps.columns[coming]]
    first = coming[0]
    sentence = _sentence(recent, places, of_gaps, first, steps[-1] + ahead[first])
    settings = recent.diagnosis.info.get("settings", {})
    layers = tuple(sorted({layer for layer, _ in places}))
    return [Alarm("forecast", sentence, layers, tuple(places), advice("entropy collapse", settings), patience=2)]


def _sentence(recent: Recent, places: list[tuple[int, int]], gaps: Trend, first: int, when: float) -> str:
    layer, head = places[0]
    logits = by_step(recent.heads, "logit_max").get((layer, head), pd.Series(dtype=float))
    growing = trend(logits.index.to_numpy(dtype=float), logits.to_numpy()[:, None]) if len(logits) >= FEWEST else None
    slope, what = gaps.slope[first], f"mean gap {gaps.last[first]:.3g}"
    if growing is not None and growing.grows[0]:
        slope, what = growing.slope[0], f"largest logit {logits.iloc[-1]:.3g}"
    others = f" {len(places) - 1} more heads follow." if len(places) > 2 else " One more head follows."
    return (
        f"layer {layer}, head {head}: {what}, doubling every {math.log(2) / slope:,.0f} updates, saturates near update "
        f"{when:,.0f}: the mean gap between its two largest scores, {gaps.last[first]:.3g} now, is {SATURATED_GAP:g} "
        f"by then, and next to no gradient passes.{others if len(places) > 1 else ''}"
    )


def by_step(heads: pd.DataFrame, column: str) -> pd.DataFrame:
    """A column with a row a measurement and a column a head, of the last measurements."""
    if column not in heads:
        return pd.DataFrame()
    wide = heads.pivot_table(index="step", columns=["layer", "head"], values=column, dropna=True)
    return wide.iloc[-POINTS:].dropna(axis=1)
