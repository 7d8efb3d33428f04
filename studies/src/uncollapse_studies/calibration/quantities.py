"""The numbers of a whole model that verdicts compare with thresholds: those of its worst head or layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from uncollapse.diagnosis import Diagnosis
from uncollapse.diagnosis.thresholds import LOW_ENTROPY, Thresholds

BIASED = ("bloom", "falcon_alibi", "gpt_oss", "swin", "t5")  # position biases and sinks differ when queries are zero


@dataclass(frozen=True)
class Quantity:
    """A number of a model, and the threshold that it is compared with, a field of `Thresholds`.

    `faults` are the cases that this number has to show; what another number shows does not count against it.
    """

    words: str
    verdict: str
    threshold: str
    faulty: Literal["above", "below"]
    worst: Callable[[Diagnosis, Thresholds], float]
    faults: tuple[str, ...]
    without: tuple[str, ...] = ()  # models in which the faults show otherwise


def _alike(report: Diagnosis, _: Thresholds) -> float:
    layers = report.layers
    return float(pd.concat([layers["cosine_aligned"], layers["cosine_centred_aligned"]], axis=1).min(axis=1).max())


def _residual(report: Diagnosis, by: Thresholds) -> float:
    layers = report.layers
    return float(layers.loc[layers["cosine_aligned"] > by.aligned_share, "residual_frobenius"].min())


def _gap(report: Diagnosis, _: Thresholds) -> float:
    heads = report.heads
    known = "gap_mean" in heads
    return float(heads.loc[heads["entropy_normalised"] < LOW_ENTROPY, "gap_mean"].max()) if known else math.nan


def _spread(report: Diagnosis, _: Thresholds) -> float:
    return float(report.heads["spread_max"].min()) if "spread_max" in report.heads else math.nan


QUANTITIES = {  # in the order in which they are chosen: what is left after centring is that of aligned tokens
    "alike": Quantity(
        "aligned token pairs of a layer, before or after centring, whichever are fewer",
        "rank collapse",
        "aligned_share",
        "above",
        _alike,
        ("two tokens in the last block",),
    ),
    "residual": Quantity(
        "what is left after centring, of a layer with aligned tokens",
        "rank collapse",
        "residual_share",
        "below",
        _residual,
        ("differences of tokens, last block", "tokens contract block by block"),
    ),
    "gap": Quantity(
        "mean gap of a head that uses under 5 % of its entropy",
        "entropy collapse",
        "saturated_gap",
        "above",
        _gap,
        ("queries of one layer",),
    ),
    "spread": Quantity(
        "largest distance of a score from its row's mean, of a head",
        "dead attention",
        "uniform_spread",
        "below",
        _spread,
        ("queries of one layer zero",),
        BIASED,
    ),
}


def numbers(report: Diagnosis, by: Thresholds) -> dict[str, float]:
    """The quantities of one report, NaN where no head or layer qualifies; and what a graded fault does to it."""
    heads, layers = report.heads, report.layers
    strength = {
        "any_gap": float(heads["gap_mean"].max()) if "gap_mean" in heads else math.nan,
        "any_residual": float(layers["residual_frobenius"].min()),
    }
    return {name: quantity.worst(report, by) for name, quantity in QUANTITIES.items()} | strength
