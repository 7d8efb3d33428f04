"""How much of what sets tokens apart survives a layer: rates from the attention matrices themselves.

J = 11^T/T takes the mean token, R = (I - J) X is the residual, ||.||_F the Frobenius norm, ||.||_2 the largest singular
value. The rows of the attention P sum to 1, so (I - J) P 1 = 0 and (I - J) P = (I - J) P (I - J) =: C. One head with
W = W_V W_O therefore leaves exactly

    Res(P X W) = (I - J) P R W = C R W,        so   ||Res(P X W)||_F <= ||C||_2 ||W||_2 ||R||_F .

Heads add up, and there are three ways to bound the sum of C_h R W_h: head by head; as (C_1 R, ..., C_H R) times the W_h
on top of each other; and as (C_1, ..., C_H) times the R W_h on top of each other. The smallest of

    sum_h ||C_h||_2 ||W_h||_2,    ||C_1; ...; C_H||_2 ||W_1; ...; W_H||_2,    ||C_1, ..., C_H||_2 ||W_1, ..., W_H||_2

is the rate f of the layer. The Frobenius norm has the triangle inequality, so a skip alpha gives alpha + (1 - alpha) f,
and rates of layers multiply. Nothing is assumed about scores, masks or biases. The rates hold for the attention that
they were computed from: they need one forward pass, where `residual_bounds` needs the weights alone.

Shapes: B batch, H heads, T tokens, M model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from uncollapse.attention import AttentionOnly

from .exact_residual import exact_residuals


def mixing_norm(attention: Tensor) -> Tensor:
    """||(I - J) P (I - J)||_2 of attention P (..., T, T): the largest share of a residual that P can leave.

    It is 0 when all queries attend alike, 1 when each token attends to itself, and at most sqrt(T/2) ever: a difference
    of two tokens that all others copy becomes larger. P may be given without a row that all rows have in common, as
    P - 1 p, which keeps the digits of an attention that is nearly uniform. The cost is that of T x T eigenvalues.

    >>> [round(float(mixing_norm(attention)), 6) for attention in (torch.full((4, 4), 0.25), torch.eye(4))]
    [0.0, 1.0]
    """
    return _norm_2(_centred(attention))


def dobrushin_coefficient(attention: Tensor) -> Tensor:
    """max_ij sum_k |P_ik - P_jk| / 2 of attention P (..., T, T): how far apart two rows are, from 0 to 1.

    The largest distance between two tokens of P X, in any norm, is at most this times that of X. For row i less row j
    is a (u - v), u and v probability vectors and a at most the coefficient, and u X - v X is a mean of differences of
    two tokens.

    >>> dobrushin_coefficient(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    tensor(0.2500)
    """
    _check_square(attention)
    return torch.cdist(attention, attention, p=1.0).amax(dim=(-1, -2)) / 2.0


def birkhoff_coefficient(scores: Tensor) -> Tensor:
    """tanh(D/4) of scores S (..., T, T), D the largest |S_ik - S_jk - S_il + S_jl|: an upper bound of Dobrushin's.

    D is Hilbert's projective distance between rows of softmax(S). It needs no softmax, so it keeps its digits where
    scores hardly differ, and it is 1 where a mask (-inf) treats two rows differently.

    >>> scores = torch.tensor([[0.0, 0.0], [-1.0, 1.0]])
    >>> birkhoff_coefficient(scores) >= dobrushin_coefficient(scores.softmax(dim=-1))
    tensor(True)
    """
    _check_square(scores)
    largest = torch.zeros(scores.shape[:-2], dtype=scores.dtype, device=scores.device)
    for row in scores.unbind(dim=-2):  # T x T differences at a time, not T x T x T
        gap = (row.unsqueeze(-2) - scores).nan_to_num(nan=0.0)  # -inf - -inf: masked in both rows
        largest = largest.maximum((gap.amax(dim=-1) - gap.amin(dim=-1)).amax(dim=-1))
    return (largest / 4.0).tanh()


def contraction_rate(attention: Tensor, value_output: Tensor, alpha: float = 0.0) -> Tensor:
    """||R'||_F <= rate ||R||_F for a layer of attention (B, H, T, T) and W_VO (H, M, M): the rate, (B,).

    The layer is x -> alpha x + (1 - alpha) sum_h P_h x W_VO,h, tokens as rows; biases change no residual. For a block
    that adds its input, x + attention(x), the rate is 1 + contraction_rate(attention, value_output).

    >>> uniform = torch.full((1, 2, 5, 5), 0.2, dtype=torch.float64)
    >>> weights = torch.randn(2, 8, 8, dtype=torch.float64)
    >>> contraction_rate(uniform, weights, alpha=0.5)
    tensor([0.5000], dtype=torch.float64)
    """
    if attention.dim() != 4 or value_output.dim() != 3 or attention.shape[1] != len(value_output):
        raise ValueError(
            "attention must have shape (B, H, T, T) and value_output (H, M, M) with as many heads, got "
            f"{tuple(attention.shape)} and {tuple(value_output.shape)}."
        )
    centred = _centred(attention)
    apart = _norm_2(centred) @ _norm_2(value_output)
    below = _norm_2(centred.flatten(1, 2)) * _norm_2(value_output.flatten(0, 1))
    beside = _norm_2(centred.transpose(1, 2).flatten(2)) * _norm_2(value_output.transpose(0, 1).flatten(1))
    return alpha + (1.0 - alpha) * torch.minimum(apart, torch.minimum(below, beside))


@dataclass(frozen=True)
class LayerContraction:
    """The residual after one layer, in the Frobenius norm, beside what its attention allows: (B,) each."""

    layer: int
    measured: Tensor
    rate: Tensor
    one_layer: Tensor  # from the residual that entered the layer
    from_input: Tensor  # from the residual of the network's input, rates multiplied


def contraction_bounds(network: AttentionOnly, x: Tensor) -> Iterator[LayerContraction]:
    """Residuals of a network on tokens x (B, T, M), float64, and their bounds, layer by layer; one forward pass.

    >>> network = AttentionOnly(depth=4, width=8, heads=2, alpha=0.0, init="xavier").double()
    >>> rows = list(contraction_bounds(network, torch.randn(1, 6, 8, dtype=torch.float64)))
    >>> all((row.measured <= row.one_layer).all() and (row.one_layer <= row.from_input).all() for row in rows)
    True
    """
    so_far = None
    for state in exact_residuals(network, x):
        before, after = (torch.linalg.matrix_norm(rest) for rest in (state.before, state.after))
        rate = contraction_rate(state.attention_difference, state.weights.value_output, network.alpha)
        so_far = rate * (before if so_far is None else so_far)
        yield LayerContraction(state.number, after, rate, rate * before, so_far)


def _centred(attention: Tensor) -> Tensor:
    """(I - J) P (I - J); raises where rows do not sum to one number, since then (I - J) P is not it."""
    _check_square(attention)
    sums = attention.sum(dim=-1)
    spread = (sums - sums.mean(dim=-1, keepdim=True)).abs().max().item()
    if not spread <= torch.finfo(attention.dtype).eps ** 0.5:  # also refuses NaN
        raise ValueError(
            f"rows of attention must have the same sum, theirs differ by {spread:.3g}; leave out padding and dropout."
        )
    columns = attention - attention.mean(dim=-2, keepdim=True)
    return columns - columns.mean(dim=-1, keepdim=True)


def _check_square(matrices: Tensor) -> None:
    if matrices.dim() < 2 or matrices.shape[-1] != matrices.shape[-2]:
        raise ValueError(f"there must be as many keys as queries, (..., T, T), got shape {tuple(matrices.shape)}.")


def _norm_2(matrices: Tensor) -> Tensor:
    """The largest singular value, by way of the smaller Gram matrix: several times as fast as a decomposition."""
    size = matrices.abs().amax(dim=(-1, -2), keepdim=True).clamp(min=torch.finfo(matrices.dtype).tiny)
    unit = matrices / size  # squares of small entries would underflow
    gram = unit @ unit.mT if unit.shape[-2] <= unit.shape[-1] else unit.mT @ unit
    largest: Tensor = torch.linalg.eigvalsh(gram)[..., -1]
    return largest.clamp(min=0.0).sqrt() * size[..., 0, 0]
