"""Signal propagation: which tokens reach a query (second paper, Section 4)."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_tangent(scores: Tensor) -> Tensor:
    """The tangent of the softmax at the origin, (w_i - mean(w) + 1) / T for scores w over T keys: (..., T).

    >>> import torch
    >>> softmax_tangent(torch.tensor([1.0, -1.0]))
    tensor([1., 0.])
    """
    return (scores - scores.mean(dim=-1, keepdim=True) + 1.0) / scores.shape[-1]


def propagates(scores: Tensor) -> Tensor:
    """Token i's signal propagates when 0 <= (w_i - mean(w) + 1) / T <= 1, w being one query's scores over T keys.

    (..., T) -> bool (..., T). rho_i is how often that happens over the rows of a batch.

    >>> import torch
    >>> propagates(torch.tensor([0.0, 0.0, 9.0]))
    tensor([False, False, False])
    >>> propagates(torch.zeros(3))
    tensor([True, True, True])
    """
    gate = softmax_tangent(scores)
    return (gate >= 0.0) & (gate <= 1.0)


def position_bins(keys: int, bins: int = 64) -> Tensor:
    """The bin of each of `keys` positions when the relative position (i - 1/2) / T is cut into `bins` equal parts.

    >>> position_bins(4, bins=2)
    tensor([0, 0, 1, 1])
    """
    return ((torch.arange(keys) + 0.5) / keys * bins).long()


def localisation(rho: Tensor) -> Tensor:
    """0 when all positions propagate alike, towards 1 when a single one does: 1 - (sum rho)^2 / (n sum rho^2).

    >>> import torch
    >>> localisation(torch.ones(4)), localisation(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    (tensor(0.), tensor(0.7500))
    """
    squares = rho.square().sum(dim=-1) * rho.shape[-1]
    return (1.0 - rho.sum(dim=-1).square() / squares).where(squares != 0, 0.0)
