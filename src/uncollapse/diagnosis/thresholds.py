"""From which numbers on something is called a collapse: every threshold once, with its reason.

The predicates take columns of a table, or arrays in which a bootstrap holds many of them. How often they are wrong, and
how far each threshold is from healthy and from faulty models, `uncollapse reproduce calibration` writes in
docs/diagnose.md.
"""

from __future__ import annotations

from typing import Any

# Rank collapse: most pairs of tokens are aligned, and what is left without their mean is negligible or aligned as well.
# The raw measure alone is fooled by a common offset, which full-rank tokens can have.
ALIGNED_SHARE = 0.5
RESIDUAL_SHARE = 0.05
# Common offset: tokens look alike only because of a part that all of them share.
OFFSET_COSINE = 0.9
# Entropy collapse: the rows of a head use next to nothing of the entropy they could have, and the mean gap between a
# row's two largest scores is such that the second weight is below a billionth of the first: no gradient to speak of
# passes. Low entropy alone is no fault: heads in which each row has found its own neighbour have it; their gaps end
# at 10 in the trained models that were measured.
LOW_ENTROPY = 0.05
SATURATED_GAP = 21.0
# Dead attention: no score of any row differs from the row's mean by more than rounding.
UNIFORM_SPREAD = 1e-5
# Sink: a head gives most of its weight to one key, the same for all rows. Many trained models do; it is no collapse.
SINK_SHARE = 0.5
# Sample: a loss above that of guessing, by more than untrained weights cost, is that of a model that reads something
# else. Weights at their initialisation cost under a tenth of it.
GUESSING_MARGIN = 1.1


def rank_collapsed(aligned: Any, residual: Any, centred_aligned: Any) -> Any:
    """Whether the tokens of a layer have become one."""
    return (aligned > ALIGNED_SHARE) & ((residual < RESIDUAL_SHARE) | (centred_aligned > ALIGNED_SHARE))


def entropy_collapsed(entropy_normalised: Any, gap_mean: Any) -> Any:
    """Whether the softmax of a head is saturated."""
    return (entropy_normalised < LOW_ENTROPY) & (gap_mean > SATURATED_GAP)


def is_sink(sink_strongest: Any) -> Any:
    """Whether one key gets most of a head's weight."""
    return sink_strongest > SINK_SHARE
