"""Every detector as a number a measurement, the larger the more alarming, so that a threshold can be chosen.

What the watch has as fixed limits is the threshold here; all else is the detector's own rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from uncollapse.diagnosis import Diagnosis
from uncollapse.diagnosis.thresholds import CHOSEN, SATURATED_GAP
from uncollapse.watching.course import PERSISTENCE
from uncollapse.watching.detectors.forecast import FEWEST, NEAR, POINTS, REACH, trend
from uncollapse.watching.detectors.sign_alignment import ALIGNED
from uncollapse.watching.detectors.sign_alignment import MEASUREMENTS as ALIGNED_MEASUREMENTS
from uncollapse.watching.detectors.spectral_entropy import LOW
from uncollapse.watching.detectors.spike import SIGMAS, spike_scores

from ..calibration.quantities import QUANTITIES, numbers

SMOOTH = 10  # updates of a running mean


@dataclass(frozen=True)
class RunTables:
    """What a watch has measured in a whole run; `updates` has the gradient norms before they are clipped."""

    heads: pd.DataFrame
    layers: pd.DataFrame
    optimizer: pd.DataFrame
    updates: pd.DataFrame
    width: int  # of a token, M
    head_size: int  # of a query, D

    @property
    def steps(self) -> np.ndarray:
        """The updates that were measured."""
        return np.asarray(self.layers["step"].unique())

    def wide(self, table: str, column: str) -> pd.DataFrame:
        """A column with a row a measurement, and a column a head or layer."""
        long: pd.DataFrame = getattr(self, table)
        places = ["layer", "head"] if table == "heads" else "layer"
        return long.pivot_table(index="step", columns=places, values=column, dropna=False).reindex(self.steps)


Score = Callable[[RunTables], np.ndarray]  # (measurements,); NaN as long as there is none


def spikes(column: str) -> Score:
    """The largest distance of an update since the last measurement from those before, in standard deviations."""

    def score(run: RunTables) -> np.ndarray:
        values, steps = run.updates[column].to_numpy(dtype=float), run.updates["step"].to_numpy()
        by_update = np.full(len(values), np.nan)
        for place, distance, _ in spike_scores(values, np.ones(len(values), dtype=bool)):
            by_update[place] = distance
        return _since_last(by_update, steps, run.steps)

    return score


def rise(column: str) -> Score:
    """A running mean over the lowest that it has been before."""

    def score(run: RunTables) -> np.ndarray:
        smooth = run.updates.set_index("step")[column].rolling(SMOOTH).mean()
        return np.asarray((smooth / smooth.cummin()).reindex(run.steps))

    return score


def _since_last(values: np.ndarray, steps: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """The largest value since the last measurement."""
    groups = pd.Series(values).groupby(np.searchsorted(measured, steps)).max()
    return np.asarray(groups.reindex(range(len(measured))))


def thresholds(run: RunTables) -> np.ndarray:
    """By which factor, as a power of two, a number of the worst head or layer is beyond its threshold, lastingly."""
    margins = pd.Series([_margin(run, step) for step in run.steps])
    return np.asarray(margins.rolling(PERSISTENCE).min())


def _margin(run: RunTables, step: int) -> float:
    heads, layers = (table[table["step"] == step] for table in (run.heads, run.layers))
    if layers["not_finite"].any():
        return np.inf
    unused = pd.DataFrame()
    found = numbers(Diagnosis(layers, heads, {}, unused, unused), CHOSEN)
    factors = [
        found[name] / getattr(CHOSEN, quantity.threshold)
        if quantity.faulty == "above"
        else getattr(CHOSEN, quantity.threshold) / found[name]
        for name, quantity in QUANTITIES.items()
        if found[name] > 0
    ]
    return float(np.log2(max(factors))) if factors else np.nan


def forecast(run: RunTables, limited: bool = False) -> np.ndarray:
    """The largest mean gap that a trend comes to, as a power of two of a saturated one; `limited` to near ones."""
    gaps, found = run.wide("heads", "gap_mean"), np.full(len(run.steps), np.nan)
    for end in range(FEWEST, len(gaps) + 1):
        window = gaps.iloc[max(0, end - POINTS) : end].dropna(axis=1)
        steps = window.index.to_numpy(dtype=float)
        line = trend(steps, window.to_numpy())
        ahead = REACH * (steps[-1] - steps[0])
        coming = np.log2(line.last / SATURATED_GAP) + line.slope * ahead / np.log(2.0)
        told = line.grows & (line.last >= NEAR) & (line.last < SATURATED_GAP) if limited else line.grows
        if told.any():
            found[end - 1] = coming[told].max()
    return found


def limited_forecast(run: RunTables) -> np.ndarray:
    """The same with the detector's own limits, twice in a row: above 0 where it tells."""
    return np.asarray(pd.Series(forecast(run, limited=True)).rolling(2).min())


def spectral_entropy(run: RunTables) -> np.ndarray:
    """How few directions the updates of a layer have had for three measurements, in the layer that has fewest."""
    wide = run.wide("optimizer", "spectral_entropy")
    return np.asarray(-wide.rolling(PERSISTENCE).max().min(axis=1))


def sign_alignment(run: RunTables) -> np.ndarray:
    """The mean cosine of the last updates with the top direction, if all have its sign, in the layer that has most."""
    last = run.wide("optimizer", "update_alignment").rolling(ALIGNED_MEASUREMENTS)
    return np.asarray(last.mean().where(last.min() > 0).max(axis=1))


def update_size(run: RunTables) -> np.ndarray:
    """The largest update of W_Q or W_K over the weight's own size, as a power of two."""
    sizes = [run.wide("optimizer", f"update_ratio_{name}").max(axis=1) for name in ("query", "key")]
    return np.asarray(np.log2(np.maximum(*map(np.asarray, sizes))))


def logit_bound(run: RunTables) -> np.ndarray:
    """The largest logit over what W_QK can make of normalised tokens, as a power of two; by theory hardly above 0.

    A token behind an RMSNorm has the norm sqrt(M), times its gains: |x W y| <= ||W||_F M, over sqrt(D).
    """
    logits, scales = run.wide("heads", "logit_max").abs(), run.wide("heads", "qk_scale")
    largest = np.asarray((logits / scales.pow(0.5)).max(axis=1))
    return np.asarray(np.log2(largest * run.head_size**0.5 / run.width))


def common_offset(run: RunTables) -> np.ndarray:
    """The largest logit over the largest distance of a score from its row's mean, as a power of two."""
    logits, spreads = run.wide("heads", "logit_max").abs(), run.wide("heads", "spread_max")
    return np.asarray(np.log2((logits / spreads).max(axis=1)))


def largest_gap(run: RunTables) -> np.ndarray:
    """The largest mean gap of all heads, as a power of two."""
    return np.asarray(np.log2(run.wide("heads", "gap_mean").max(axis=1)))


def update_growth(run: RunTables) -> np.ndarray:
    """By what the size of the updates of W_Q has grown since the measurement before, as a power of two."""
    sizes = run.wide("optimizer", "update_ratio_query") * run.wide("optimizer", "weight_norm_query")
    return np.asarray(np.log2(sizes.mean(axis=1)).diff())


def spike(run: RunTables) -> np.ndarray:
    """The larger of the two spikes that the detector looks for."""
    return np.fmax(spikes("loss")(run), spikes("gradient_norm")(run))


ALONE: dict[str, Score] = {  # what every training loop has
    "loss spike": spikes("loss"),
    "loss rise": rise("loss"),
    "gradient norm spike": spikes("gradient_norm"),
    "gradient norm rise": rise("gradient_norm"),
}
DETECTED: dict[str, Score] = {  # by the names of the watch's detectors
    "thresholds": thresholds,
    "forecast": forecast,
    "spike": spike,
    "spectral_entropy": spectral_entropy,
    "sign_alignment": sign_alignment,
}
TRIED: dict[str, Score] = {  # numbers of the watch that no detector looks at
    "update size": update_size,
    "logit bound": logit_bound,
    "common offset": common_offset,
    "largest gap": largest_gap,
}
SCORES = ALONE | DETECTED | TRIED
READINGS: dict[str, Score] = {  # no alarms
    "update growth": update_growth,  # it tells causes apart
    "limited forecast": limited_forecast,
}
LIMITS = {  # detector -> the score and the limit above which it tells as it comes
    "thresholds": ("thresholds", 0.0),
    "forecast": ("limited forecast", 0.0),
    "spike": ("spike", SIGMAS),
    "spectral_entropy": ("spectral_entropy", -LOW),
    "sign_alignment": ("sign_alignment", ALIGNED),
}
