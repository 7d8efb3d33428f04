"""The piecewise-linear softmax of the second paper (Section 2): its tangent at the origin, clipped to [0, 1].

Shapes: T tokens; one query's scores are (..., T).
"""

from __future__ import annotations

import torch
from torch import Tensor

from uncollapse.metrics import propagates, softmax_tangent

from .form import check_tokens


def piecewise_softmax(scores: Tensor) -> Tensor:
    """S~(w)_i = clip((w_i - mean(w) + 1) / T, 0, 1): (..., T). Near the origin it is the softmax to first order.

    It is not a probability vector: once entries are clipped, they need not sum to one.

    >>> import torch
    >>> piecewise_softmax(torch.tensor([0.0, 0.0, 9.0]))
    tensor([0., 0., 1.])
    """
    check_tokens(scores.shape[-1])
    return softmax_tangent(scores).clamp(0.0, 1.0)


def piecewise_coefficients(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Gamma (..., T, T) and gamma_0 (..., T) with S~(w) = Gamma^T w + gamma_0 (Section 2).

    Column i of Gamma is e_i/T - 1/T^2 where token i's signal propagates and zero elsewhere; gamma_0^i is 1/T where it
    propagates, else 0 (clipped below) or 1 (clipped above).

    >>> import torch
    >>> w = torch.tensor([0.5, -0.2, 9.0])
    >>> gamma, offset = piecewise_coefficients(w)
    >>> torch.allclose(gamma.mT @ w + offset, piecewise_softmax(w))
    True
    """
    tokens = check_tokens(scores.shape[-1])
    passed = propagates(scores)
    slopes = torch.eye(tokens, dtype=scores.dtype, device=scores.device) / tokens - 1.0 / tokens**2
    return slopes * passed.unsqueeze(-2), offsets(scores, passed)


def offsets(scores: Tensor, passed: Tensor) -> Tensor:
    """gamma_0 (..., T), given which tokens' signals propagate."""
    above = (softmax_tangent(scores) > 1.0).to(scores.dtype)
    return torch.where(passed, 1.0 / scores.shape[-1], above)
