"""One layer of `carried`, forward and backward, strip by strip: in C++ where that serves, else in torch operations.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size. Score buffers are flat (`ScoreLayout`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _native as native
from ._pool import POOL
from ._rows import MaskDropout, add_mask_gradient, mask_future, softmax_strip
from ._tiling import TILE, ScoreLayout
from .state import score_dtype


@dataclass(frozen=True, slots=True)
class CarriedStep:
    """H_n = keep H_{n-1} + gain Q K^T, gain = take * scale, and what the softmax sees of it."""

    keep: float  # 0 where nothing is inherited
    gain: float
    layout: ScoreLayout  # of H_n
    old_layout: ScoreLayout  # of H_{n-1}
    mask_dropout: MaskDropout
    native: bool  # run in C++

    def new_buffer(self, q: Tensor) -> Tensor:
        return POOL.take(q.shape[0] * q.shape[1] * self.layout.per_head, score_dtype(q.dtype), q.device)


def forward(
    q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, new: Tensor, step: CarriedStep
) -> tuple[Tensor, Tensor]:
    """Write H_n into `new`, which may be `old` itself; return the output and what C++ keeps of each row (B, H, Q)."""
    mask_dropout = step.mask_dropout
    if step.native:
        out, logsumexp = native.operators().carried_forward(
            q,
            k,
            v,
            old,
            new,
            mask_dropout.attn_mask,
            step.keep,
            step.gain,
            mask_dropout.is_causal,
            step.old_layout.causal,
            mask_dropout.dropout_p,
            mask_dropout.seed,
            TILE,
        )
        return out, logsumexp
    with full_precision(q):
        return _torch_forward(q, k, v, old, new, step), new.new_zeros(q.shape[:3])


def backward(
    grad_out: Tensor,
    grad_hidden: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    hidden: Tensor,
    logsumexp: Tensor,
    grad_old: Tensor | None,
    grad_mask: Tensor | None,
    step: CarriedStep,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; that of H_{n-1} is written into `grad_old`, which may be `hidden` itself.

    The gradient of an additive mask is added to `grad_mask`.
    """
    mask_dropout = step.mask_dropout
    if step.native:
        dq, dk, dv = native.operators().carried_backward(
            grad_out,
            grad_hidden,
            q,
            k,
            v,
            out,
            hidden,
            logsumexp,
            grad_old,
            mask_dropout.attn_mask,
            step.keep,
            step.gain,
            mask_dropout.is_causal,
            step.old_layout.causal,
            mask_dropout.dropout_p,
            mask_dropout.seed,
            TILE,
        )
        return dq, dk, dv
    with full_precision(q):
        return _torch_backward(grad_out, grad_hidden, q, k, v, out, hidden, grad_old, grad_mask, step)


def full_precision(q: Tensor) -> torch.autocast:
    """Scores are carried in float32: autocast must not shorten the products."""
    return torch.autocast(q.device.type, enabled=False)


def repeat_groups(t: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """(B, G, T, D) -> (B * H, T, D): groups repeated for their query heads."""
    if t.shape[1] != heads:
        t = t.repeat_interleave(heads // t.shape[1], dim=1)
    return t.to(dtype).reshape(-1, *t.shape[2:])


def sum_groups(t: Tensor, like: Tensor) -> Tensor:
    """(B * H, T, D) -> the shape and dtype of `like` (B, G, T, D): the adjoint of `repeat_groups`."""
    batch, groups = like.shape[:2]
    t = t.view(batch, groups, -1, *t.shape[1:])
    return (t[:, :, 0] if t.shape[2] == 1 else t.sum(dim=2)).to(like.dtype)


def _torch_forward(q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, new: Tensor, step: CarriedStep) -> Tensor:
    heads, mask_dropout = q.shape[1], step.mask_dropout
    count = q.shape[0] * heads
    queries, keys, values = (repeat_groups(t, heads, new.dtype) for t in (q, k, v))
    out = new.new_empty(count, q.shape[2], v.shape[3])
    olds: Iterator[Tensor | None] = _views(step.old_layout, old, count)
    for strip, hidden, before in zip(step.layout.strips(), step.layout.views(new, count), olds, strict=True):
        ours, theirs = queries[:, strip.rows], keys[:, : strip.width].mT
        if before is None:  # beta = 0: what the buffer held before is never read
            torch.baddbmm(hidden, ours, theirs, beta=0, alpha=step.gain, out=hidden)
        else:
            before = before[..., : strip.width]
            torch.baddbmm(before, ours, theirs, beta=step.keep, alpha=step.gain, out=hidden)
        if mask_dropout.is_causal:
            mask_future(hidden, strip)
        weights = softmax_strip(hidden, strip, mask_dropout)
        factors = mask_dropout.dropout_factors(strip, new.dtype, new.device)
        weights = weights if factors is None else weights.mul_(factors)
        out[:, strip.rows] = weights @ values[:, : strip.width]
    return out.view(*q.shape[:3], -1).to(v.dtype)


def _torch_backward(
    grad_out: Tensor,
    grad_hidden: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    hidden: Tensor,
    grad_old: Tensor | None,
    grad_mask: Tensor | None,
    step: CarriedStep,
) -> tuple[Tensor, Tensor, Tensor]:
    heads, mask_dropout, layout = q.shape[1], step.mask_dropout, step.layout
    count = q.shape[0] * heads
    queries, keys, values, douts, outs = (repeat_groups(t, heads, hidden.dtype) for t in (q, k, v, grad_out, out))
    row_sums = (douts * outs).sum(dim=-1, keepdim=True)  # of weights * their gradients
    dq, dk, dv = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
    for strip, scores, carried, inherited in zip(
        layout.strips(),
        layout.views(hidden, count),
        _views(layout, grad_hidden, count),
        _views(step.old_layout, grad_old, count),
        strict=True,
    ):
        dout, width = douts[:, strip.rows], strip.width
        weights = softmax_strip(scores, strip, mask_dropout)
        gradient = dout @ values[:, :width].mT
        factors = mask_dropout.dropout_factors(strip, hidden.dtype, hidden.device)
        if factors is not None:
            gradient.mul_(factors)
        kept = weights if factors is None else weights * factors
        dv[:, :width].baddbmm_(kept.mT, dout)
        gradient.sub_(row_sums[:, strip.rows]).mul_(weights)
        if grad_mask is not None:
            add_mask_gradient(grad_mask, gradient, strip, mask_dropout)
        if carried is not None:
            gradient.add_(carried)
        dq[:, strip.rows] = gradient @ keys[:, :width]
        dk[:, :width].baddbmm_(gradient.mT, queries[:, strip.rows])
        if inherited is not None:
            torch.mul(gradient, step.keep, out=inherited[..., :width])
            inherited[..., width:].zero_()
    dq, dk = dq.mul_(step.gain), dk.mul_(step.gain)
    return sum_groups(dq, q), sum_groups(dk, k), sum_groups(dv, v)


def _views(layout: ScoreLayout, buffer: Tensor | None, heads: int) -> Iterator[Tensor | None]:
    if buffer is None:
        return iter([None] * len(layout.strips()))
    return layout.views(buffer, heads)
