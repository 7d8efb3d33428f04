"""Measures of collapse: pure functions of tensors, one definition each."""

from .entropy import RowStatistics, entropy, row_statistics
from .gap import gap
from .histogram import Histogram
from .mixing import mixing_bound
from .propagation import localisation, position_bins, propagates, softmax_tangent
from .qk_update import qk_update
from .rank import (
    effective_rank,
    norm_1,
    norm_1_inf,
    norm_inf,
    residual,
    residual_frobenius,
    residual_ratio,
    singular_values,
    stable_rank,
)
from .similarity import Cosines, cosine_mean, cosine_pairs, count_raw_and_centred, unit_tokens
from .spectrum import Spectrum, qk_scale, qk_spectrum, qk_trace, qk_traces

__all__ = [
    "Cosines",
    "Histogram",
    "RowStatistics",
    "Spectrum",
    "cosine_mean",
    "cosine_pairs",
    "count_raw_and_centred",
    "effective_rank",
    "entropy",
    "gap",
    "localisation",
    "mixing_bound",
    "norm_1",
    "norm_1_inf",
    "norm_inf",
    "position_bins",
    "propagates",
    "qk_scale",
    "qk_spectrum",
    "qk_trace",
    "qk_traces",
    "qk_update",
    "residual",
    "residual_frobenius",
    "residual_ratio",
    "row_statistics",
    "singular_values",
    "softmax_tangent",
    "stable_rank",
    "unit_tokens",
]
