"""From which numbers on something is called a collapse: every threshold once, with its reason.

Four of them are in `thresholds.json`, where `uncollapse reproduce calibration` writes them: each lies in the middle, by
factors, between the worst healthy and the mildest faulty model of one half of those that it measures. How often the
verdicts are wrong on either half stands in docs/diagnose.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

FILE = "thresholds.json"


@dataclass(frozen=True)
class Thresholds:
    """The thresholds that are chosen by measurement."""

    # Rank collapse: this share of the token pairs is aligned, and what is left without their mean is negligible or
    # aligned as well. The raw share alone is fooled by a common offset, which full-rank tokens can have.
    aligned_share: float
    residual_share: float
    # Entropy collapse: the mean gap between a row's two largest scores. At 17 the second weight is what float32 rounds
    # away beside the first: no gradient to speak of passes.
    saturated_gap: float
    # Dead attention: no score of any row differs from the row's mean by more than rounding.
    uniform_spread: float


CHOSEN = Thresholds(**json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))["thresholds"])
ALIGNED_SHARE, RESIDUAL_SHARE = CHOSEN.aligned_share, CHOSEN.residual_share
SATURATED_GAP, UNIFORM_SPREAD = CHOSEN.saturated_gap, CHOSEN.uniform_spread

# Common offset: tokens look alike only because of a part that all of them share.
OFFSET_COSINE = 0.9
# Entropy collapse, its other half: the rows of a head use next to nothing of the entropy they could have. Low entropy
# alone is no fault: heads in which each row has found its own neighbour have it; their gaps stay small.
LOW_ENTROPY = 0.05
# Sink: a head gives most of its weight to one key, the same for all rows. Many trained models do; it is no collapse.
SINK_SHARE = 0.5
# Sample: a loss above that of guessing, by more than untrained weights cost, is that of a model that reads something
# else. Weights at their initialisation cost under a tenth of it.
GUESSING_MARGIN = 1.1


def rank_collapsed(aligned: Any, residual: Any, centred_aligned: Any, by: Thresholds = CHOSEN) -> Any:
    """Whether the tokens of a layer have become one, or two; columns of a table, or arrays of many draws of them."""
    return (aligned > by.aligned_share) & ((residual < by.residual_share) | (centred_aligned > by.aligned_share))


def entropy_collapsed(entropy_normalised: Any, gap_mean: Any, by: Thresholds = CHOSEN) -> Any:
    """Whether the softmax of a head is saturated."""
    return (entropy_normalised < LOW_ENTROPY) & (gap_mean > by.saturated_gap)


def is_uniform(spread_max: Any, by: Thresholds = CHOSEN) -> Any:
    """Whether every row of a head gives all of its keys the same weight."""
    return spread_max <= by.uniform_spread


def is_sink(sink_strongest: Any) -> Any:
    """Whether one key gets most of a head's weight."""
    return sink_strongest > SINK_SHARE
