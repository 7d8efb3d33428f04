"""One layer of `stacked`, forward and backward: strips of H_n made from past queries and keys when needed.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _native as native
from ._carried_tiles import full_precision, repeat_groups, sum_groups
from ._rows import MaskDropout, add_mask_gradient, mask_future, softmax_strip
from ._tiling import TILE, ScoreLayout, Strip
from .state import score_dtype


@dataclass(frozen=True, slots=True)
class StackedStep:
    """H_n = sum_l weights[l] Q_l K_l^T, and what the softmax sees of it."""

    weights: tuple[float, ...]
    mask_dropout: MaskDropout
    native: bool  # run in C++

    def strips(self) -> tuple[Strip, ...]:
        _, _, queries, keys = self.mask_dropout.shape
        return ScoreLayout(queries, keys, self.mask_dropout.is_causal).strips()


def forward(qs: Sequence[Tensor], ks: Sequence[Tensor], v: Tensor, past: StackedStep) -> tuple[Tensor, Tensor]:
    """The output and what C++ keeps of each row (B, H, Q)."""
    mask_dropout = past.mask_dropout
    if past.native:
        out, logsumexp = native.operators().stacked_forward(
            qs,
            ks,
            v,
            past.weights,
            mask_dropout.attn_mask,
            mask_dropout.is_causal,
            mask_dropout.dropout_p,
            mask_dropout.seed,
            TILE,
        )
        return out, logsumexp
    with full_precision(v):
        return _torch_forward(qs, ks, v, past), v.new_zeros(mask_dropout.shape[:3], dtype=score_dtype(v.dtype))


def backward(
    grad_out: Tensor,
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    grad_mask: Tensor | None,
    past: StackedStep,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Gradients of v, of all queries and of all keys; that of an additive mask is added to `grad_mask`."""
    mask_dropout = past.mask_dropout
    if past.native:
        dv, dqs, dks = native.operators().stacked_backward(
            grad_out,
            qs,
            ks,
            v,
            out,
            logsumexp,
            past.weights,
            mask_dropout.attn_mask,
            mask_dropout.is_causal,
            mask_dropout.dropout_p,
            mask_dropout.seed,
            TILE,
        )
        return dv, dqs, dks
    with full_precision(v):
        return _torch_backward(grad_out, qs, ks, v, out, grad_mask, past)


def _strip_scores(queries: list[Tensor], keys: list[Tensor], strip: Strip, past: StackedStep) -> Tensor:
    """H_n of one strip (B * H, rows, width)."""
    hidden = queries[0].new_empty(queries[0].shape[0], strip.stop - strip.start, strip.width)
    for index, (q, k, weight) in enumerate(zip(queries, keys, past.weights, strict=True)):
        hidden.baddbmm_(q[:, strip.rows], k[:, : strip.width].mT, beta=float(index > 0), alpha=weight)
    if past.mask_dropout.is_causal:
        mask_future(hidden, strip)
    return hidden


def _torch_forward(qs: Sequence[Tensor], ks: Sequence[Tensor], v: Tensor, past: StackedStep) -> Tensor:
    mask_dropout, wide = past.mask_dropout, score_dtype(v.dtype)
    heads = mask_dropout.shape[1]
    queries, keys = ([repeat_groups(t, heads, wide) for t in many] for many in (qs, ks))
    values = repeat_groups(v, heads, wide)
    out = values.new_empty(values.shape[0], mask_dropout.shape[2], v.shape[3])
    for strip in past.strips():
        weights = softmax_strip(_strip_scores(queries, keys, strip, past), strip, mask_dropout)
        factors = mask_dropout.dropout_factors(strip, wide, v.device)
        weights = weights if factors is None else weights.mul_(factors)
        out[:, strip.rows] = weights @ values[:, : strip.width]
    return out.view(*mask_dropout.shape[:3], -1).to(v.dtype)


def _torch_backward(
    grad_out: Tensor,
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    out: Tensor,
    grad_mask: Tensor | None,
    past: StackedStep,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    mask_dropout, wide = past.mask_dropout, score_dtype(v.dtype)
    heads = mask_dropout.shape[1]
    queries, keys = ([repeat_groups(t, heads, wide) for t in many] for many in (qs, ks))
    values, douts, outs = (repeat_groups(t, heads, wide) for t in (v, grad_out, out))
    row_sums = (douts * outs).sum(dim=-1, keepdim=True)  # of weights * their gradients
    dv, dqs, dks = torch.zeros_like(values), [torch.empty_like(q) for q in queries], [torch.zeros_like(k) for k in keys]
    for strip in past.strips():
        dout, width = douts[:, strip.rows], strip.width
        weights = softmax_strip(_strip_scores(queries, keys, strip, past), strip, mask_dropout)
        gradient = dout @ values[:, :width].mT
        factors = mask_dropout.dropout_factors(strip, wide, v.device)
        if factors is not None:
            gradient.mul_(factors)
        kept = weights if factors is None else weights * factors
        dv[:, :width].baddbmm_(kept.mT, dout)
        gradient.sub_(row_sums[:, strip.rows]).mul_(weights)
        if grad_mask is not None:
            add_mask_gradient(grad_mask, gradient, strip, mask_dropout)
        for q, k, dq, dk, weight in zip(queries, keys, dqs, dks, past.weights, strict=True):
            dq[:, strip.rows] = (gradient @ k[:, :width]).mul_(weight)
            dk[:, :width].baddbmm_(gradient.mT, q[:, strip.rows], alpha=weight)
    return (
        sum_groups(dv, v),
        [sum_groups(dq, q) for dq, q in zip(dqs, qs, strict=True)],
        [sum_groups(dk, k) for dk, k in zip(dks, ks, strict=True)],
    )
