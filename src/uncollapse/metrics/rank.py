"""Rank collapse: how far tokens are from being all alike. Tokens are rows: (..., T, M)."""

from __future__ import annotations

import torch
from torch import Tensor


def residual(x: Tensor) -> Tensor:
    """Res(X) = X - 1 mean^T, the tokens minus their mean (Eq. 8 to 10).

    >>> import torch
    >>> residual(torch.tensor([[1.0, 2.0], [3.0, 2.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    return x - x.mean(dim=-2, keepdim=True)


def unit_size(x: Tensor) -> Tensor:
    """X divided by its largest entry, so that squares neither overflow nor vanish whatever the scale of the tokens.

    >>> import torch
    >>> unit_size(torch.tensor([[2e-30, 1e-30]]))
    tensor([[1.0000, 0.5000]])
    """
    largest = x.abs().amax(dim=(-1, -2), keepdim=True)  # a tenth of the time of vector_norm
    return x / largest.where(largest > 0, 1.0)


def norm_1(x: Tensor) -> Tensor:
    """Operator 1-norm, the largest column sum (Eq. 2)."""
    return x.abs().sum(dim=-2).amax(dim=-1)


def norm_inf(x: Tensor) -> Tensor:
    """Operator infinity-norm, the largest row sum (Eq. 3)."""
    return x.abs().sum(dim=-1).amax(dim=-1)


def norm_1_inf(x: Tensor) -> Tensor:
    """sqrt(norm_1 norm_inf) (Eq. 7). Not a norm: the triangle inequality fails.

    >>> import torch
    >>> norm_1_inf(torch.ones(4, 1))
    tensor(2.)
    """
    return norm_1(x).sqrt() * norm_inf(x).sqrt()  # the product itself would overflow earlier


def residual_ratio(x: Tensor) -> Tensor:
    """Norm of Res(X) over norm of X in the (1, inf) sense (Eq. 44); 0 when all tokens are alike.

    One number per sequence: (..., T, M) -> (...). Tokens that are all zero count as alike.

    >>> import torch
    >>> residual_ratio(torch.ones(5, 3)), residual_ratio(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    (tensor(0.), tensor(1.))
    """
    size = norm_1_inf(x)
    return (norm_1_inf(residual(x)) / size).where(size != 0, 0.0)


def residual_frobenius(x: Tensor) -> Tensor:
    """Frobenius norm of Res(X) over that of X: the share of the tokens' size that is not common to all of them.

    >>> import torch
    >>> residual_frobenius(torch.tensor([[3.0, 1.0], [3.0, -1.0]])) ** 2
    tensor(0.1000)
    """
    x = unit_size(x)
    size: Tensor = torch.linalg.matrix_norm(x)
    rest: Tensor = torch.linalg.matrix_norm(residual(x))
    return (rest / size).where(size != 0, 0.0)


def singular_values(x: Tensor) -> Tensor:
    """Singular values of X, largest first: (..., T, M) -> (..., min(T, M)), from the smaller Gram matrix in float64.

    Values are accurate to 1e-8 of the largest one, which is enough for ranks, at a fraction of the cost of an SVD.
    """
    x = x.double()
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    squares: Tensor = torch.linalg.eigvalsh(gram)
    return squares.clamp(min=0.0).sqrt().flip(-1)


def stable_rank(x: Tensor, singular: Tensor | None = None) -> Tensor:
    """Squared Frobenius norm over squared spectral norm: 1 for tokens that are all alike.

    `singular` are the singular values of X if they are already known.

    >>> import torch
    >>> stable_rank(torch.eye(3))
    tensor(3., dtype=torch.float64)
    """
    squares = (singular_values(x) if singular is None else singular).square()
    largest = squares.amax(dim=-1)
    return (squares.sum(dim=-1) / largest).where(largest != 0, 0.0)


def effective_rank(x: Tensor, singular: Tensor | None = None) -> Tensor:
    """Exponential of the entropy of the normalised singular values (Roy and Vetterli, 2007).

    `singular` are the singular values of X if they are already known.

    >>> import torch
    >>> effective_rank(torch.diag(torch.tensor([2.0, 2.0, 0.0])))
    tensor(2., dtype=torch.float64)
    """
    singular = singular_values(x) if singular is None else singular
    total = singular.sum(dim=-1, keepdim=True)
    spread: Tensor = torch.special.entr((singular / total).where(total != 0, 0.0)).sum(dim=-1)
    return spread.exp().where(total.squeeze(-1) != 0, 0.0)
