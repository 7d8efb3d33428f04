"""The spectrum of W = W_Q^T W_K of a head, from D x D products only; W itself (M x M) is never formed.

W_Q and W_K are (..., D, M). The non-zero eigenvalues of W are those of W_K W_Q^T. Trained W are not symmetric, so what
the papers say of symmetric matrices is taken of S = (W + W^T)/2: tr S = tr W, tr S^2 = (tr W^2 + tr W^T W)/2 >= 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spectrum:
    """Quantities of each head (...), and its D possibly non-zero eigenvalues (..., D), complex."""

    trace: Tensor  # tr W
    square: Tensor  # tr W^2, may be negative
    scale: Tensor  # tr W^T W
    variance: Tensor  # M tr S^2 - (tr W)^2 (Eq. 8)
    spectral_norm: Tensor  # largest singular value of W
    xi: Tensor  # tr W / sqrt(tr S^2)
    eta: Tensor  # sqrt(tr S^2) / lambda
    eigenvalues: Tensor


def qk_traces(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The traces tr W, tr W^2 and tr W^T W of W = W_Q^T W_K.

    >>> import torch
    >>> qk_traces(torch.eye(2, 3), 2 * torch.eye(2, 3))
    (tensor(4.), tensor(8.), tensor(8.))
    """
    small = key @ query.mT  # W_K W_Q^T: (..., D, D)
    square = (small * small.mT).sum(dim=(-1, -2))
    return qk_trace(query, key), square, qk_scale(query, key)


def qk_trace(query: Tensor, key: Tensor) -> Tensor:
    """The trace tr W of W = W_Q^T W_K.

    >>> qk_trace(torch.eye(2, 3), 2 * torch.eye(2, 3))
    tensor(4.)
    """
    return (query * key).sum(dim=(-1, -2))


def qk_scale(query: Tensor, key: Tensor) -> Tensor:
    """The squared size tr W^T W of W = W_Q^T W_K.

    >>> qk_scale(torch.eye(2, 3), 2 * torch.eye(2, 3))
    tensor(8.)
    """
    return scale_of_grams(query @ query.mT, key @ key.mT)


def scale_of_grams(query_gram: Tensor, key_gram: Tensor) -> Tensor:
    """The same from W_Q W_Q^T and W_K W_K^T, (..., D, D), if they are computed anyway."""
    return (query_gram * key_gram).sum(dim=(-1, -2))


def qk_spectrum(query: Tensor, key: Tensor, softmax_scale: float) -> Spectrum:
    """The spectrum of each head, in float64; `softmax_scale` is 1/lambda, usually 1/sqrt(D).

    >>> import torch
    >>> qk_spectrum(torch.eye(2, 3), torch.eye(2, 3), softmax_scale=1.0).spectral_norm
    tensor(1., dtype=torch.float64)
    """
    query, key = query.detach().double(), key.detach().double()
    trace, square, scale = qk_traces(query, key)
    symmetric = (square + scale) / 2  # tr S^2
    width = query.shape[-1]
    # singular values of W squared are the eigenvalues of (W_Q W_Q^T)(W_K W_K^T)
    squares = _eigenvalues((query @ query.mT) @ (key @ key.mT)).real
    return Spectrum(
        trace=trace,
        square=square,
        scale=scale,
        variance=width * symmetric - trace.square(),
        spectral_norm=squares.amax(dim=-1).clamp(min=0.0).sqrt(),
        xi=(trace / symmetric.sqrt()).where(~(symmetric <= 0), 0.0),
        eta=symmetric.clamp(min=0.0).sqrt() * softmax_scale,
        eigenvalues=_eigenvalues(key @ query.mT),
    )


def _eigenvalues(matrices: Tensor) -> Tensor:
    """Eigenvalues (..., D) of matrices (..., D, D); NaN for one that is not finite, where LAPACK gives garbage."""
    finite = matrices.isfinite().all(dim=-1).all(dim=-1)[..., None]
    values: Tensor = torch.linalg.eigvals(matrices.where(finite[..., None], 0.0))
    return values.where(finite, math.nan)
