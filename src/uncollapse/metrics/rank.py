"""How far tokens are from being all alike (rank collapse). Tokens are rows: (..., T, M)."""

from __future__ import annotations

from torch import Tensor


def residual(x: Tensor) -> Tensor:
    """Res(X) = X - 1 mean^T: what is left of the tokens without their mean (Eq. 8 to 10).

    >>> import torch
    >>> residual(torch.tensor([[1.0, 2.0], [3.0, 2.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    return x - x.mean(dim=-2, keepdim=True)


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
    return (norm_1(x) * norm_inf(x)).sqrt()


def residual_ratio(x: Tensor) -> Tensor:
    """Norm of Res(X) over norm of X in the (1, inf) sense (Eq. 44); 0 when all tokens are alike.

    One number a sequence: (..., T, M) -> (...). Tokens that are all zero are all alike.

    >>> import torch
    >>> residual_ratio(torch.ones(5, 3)), residual_ratio(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    (tensor(0.), tensor(1.))
    """
    size = norm_1_inf(x)
    return (norm_1_inf(residual(x)) / size).where(size > 0, 0.0)
