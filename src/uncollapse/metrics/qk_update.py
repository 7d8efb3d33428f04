"""What an update does to W = W_Q^T W_K of a head, from products of small matrices; W itself (M x M) is never formed.

W_Q and W_K are (..., D, M). An update takes W to W' = W + U, and U = dW_Q^T W_K + W_Q'^T dW_K has rank 2 D at most.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .rank import effective_rank


def qk_update(query: Tensor, key: Tensor, new_query: Tensor, new_key: Tensor) -> tuple[Tensor, Tensor]:
    """Spectral entropy of the update U, and its alignment with the top singular direction of W; in float64.

    The entropy is that of the singular values of U, normalised to sum to one, over log 2 D: 1 for an update that goes
    in all directions it can, 0 for one of rank one. The alignment is <U, u v^T> / ||U||_F in [-1, 1], with u and v the
    top singular vectors of W: positive where the update makes the largest singular value larger. Both are 0 where
    nothing was updated.

    >>> query, key = torch.eye(2, 3), torch.diag(torch.tensor([2.0, 1.0, 0.0]))[:2]
    >>> new = key.clone()
    >>> new[0, 0] = 3.0  # the top singular value grows, and nothing else happens
    >>> entropy, alignment = qk_update(query, key, query, new)
    >>> round(entropy.item(), 6), round(alignment.item(), 6)
    (0.0, 1.0)
    """
    query, key, new_query, new_key = (w.detach().double() for w in (query, key, new_query, new_key))
    left = torch.cat([new_query - query, new_query], dim=-2)  # U = left^T right, (..., 2 D, M) each
    right = torch.cat([key, new_key - key], dim=-2)
    (_, left_r), (_, right_r) = torch.linalg.qr(left.mT), torch.linalg.qr(right.mT)
    singular = torch.linalg.svdvals(left_r @ right_r.mT)
    size = torch.linalg.vector_norm(singular, dim=-1)
    entropy = effective_rank(singular, singular).log() / math.log(min(left.shape[-2:]))
    u, v = _top_direction(query, key)
    along = ((left @ u.unsqueeze(-1)) * (right @ v.unsqueeze(-1))).sum(dim=(-1, -2))
    moved = size > 0
    return entropy.where(moved, 0.0).clamp(0.0, 1.0), (along / size).where(moved, 0.0)


def _top_direction(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The top singular vectors of W = W_Q^T W_K, (..., M) each."""
    (query_q, query_r), (key_q, key_r) = torch.linalg.qr(query.mT), torch.linalg.qr(key.mT)
    u, _, vh = torch.linalg.svd(query_r @ key_r.mT)
    return (query_q @ u[..., :1]).squeeze(-1), (key_q @ vh[..., :1, :].mT).squeeze(-1)
