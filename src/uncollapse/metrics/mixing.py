"""How far attention brings tokens together: a bound that follows from two sums over its weights.

The rows of P (T x T) sum to 1, so P takes the residual R = (I - J) X, J = 11^T/T, of its input to that of its output,

    Res(P X) = (I - J) P R,     ||Res(P X)||_F <= ||(I - J) P||_2 ||R||_F .

With the column sums c of P, (I - J) P = P - 1 c^T/T has the squared Frobenius norm sum_ik P_ik^2 - sum_k c_k^2/T, which
bounds that of the largest singular value; so does ||P||_1 ||P||_inf = max_k c_k. Neither needs the whole of P at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDING = 8.0  # units of float rounding in the sums: their difference may be off by this share of the first


def mixing_bound(attention: Tensor) -> Tensor:
    """At most this share of what sets tokens apart is left by attention P (..., T, T), in the Frobenius norm.

    It is attained where all rows are alike (0, up to rounding), where P permutes the tokens (1), and where the tokens
    copy one of two in turn (sqrt(T/2), the largest there is). In between it may be above `theory.mixing_norm`, the
    largest share itself, by up to about sqrt(T)/2; that one needs eigenvalues of T x T matrices.

    >>> import torch
    >>> mixing_bound(torch.eye(4)).round(decimals=3), mixing_bound(torch.full((4, 4), 0.25)) < 1e-2
    (tensor(1.), tensor(True))
    """
    rows = torch.tensor(attention.shape[-2], dtype=attention.dtype)
    return mixing_bound_of_sums(rows, attention.square().sum(dim=(-1, -2)), attention.sum(dim=-2))


def mixing_bound_of_sums(rows: Tensor, squares: Tensor, columns: Tensor) -> Tensor:
    """The same from T (...), the sum of all squared weights (...) and the column sums (..., K); float32 sums or better.

    Rounding is added to the difference of the two sums, so that the result stays a bound: for rows that are alike in
    float32 it is about 0.001 rather than 0.

    >>> tokens, squares, columns = torch.tensor(2.0), torch.tensor(2.0), torch.tensor([1.0, 1.0])  # P = I
    >>> mixing_bound_of_sums(tokens, squares, columns).round(decimals=3)
    tensor(1.)
    """
    allowance = _ROUNDING * torch.finfo(torch.promote_types(squares.dtype, columns.dtype)).eps
    apart = squares * (1.0 + allowance) - columns.square().sum(dim=-1) / rows
    return torch.minimum(apart.clamp(min=0.0), columns.amax(dim=-1) * (1.0 + allowance)).sqrt()
