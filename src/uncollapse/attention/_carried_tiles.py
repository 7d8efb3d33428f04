"""One layer of `carried`, forward and backward, strip by strip, in C++ or in torch operations.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size. Score buffers are flat
(`ScoreLayout`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _native as native
from ._pool import POOL
from ._strips import (
    SoftmaxSettings,
    StripBackward,
    add_product_gradient,
    full_precision,
    mask_future,
    repeat_groups,
    strip_output,
    sum_groups,
)
from ._tiling import ScoreLayout
from .state import Engine, score_dtype


@dataclass(frozen=True, slots=True)
class CarriedSettings:
    """One layer of `carried`: H_n = keep H_{n-1} + gain Q K^T, out = softmax(H_n) V."""

    keep: float  # 0 where nothing is inherited
    gain: float  # take * scale
    old_causal: bool  # whether H_{n-1} has the causal layout
    softmax: SoftmaxSettings
    engine: Engine

    @property
    def layout(self) -> ScoreLayout:
        return self.softmax.layout

    @property
    def old_layout(self) -> ScoreLayout:
        return ScoreLayout(self.layout.queries, self.layout.keys, self.old_causal)

    def new_buffer(self, layout: ScoreLayout, q: Tensor) -> Tensor:
        """Uninitialised scores of all heads of `q`."""
        return POOL.take(q.shape[0] * q.shape[1] * layout.per_head, score_dtype(q.dtype), q.device)

    def cpp_arguments(self) -> dict[str, Any]:
        """The keyword arguments of the C++ operators."""
        own = {"keep": self.keep, "gain": self.gain, "old_causal": self.old_causal}
        return {**own, **self.softmax.cpp_arguments()}


def forward(
    q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, hidden: Tensor, settings: CarriedSettings
) -> tuple[Tensor, Tensor]:
    """Write H_n into `hidden`, which may be `old` itself; return the output and each row's log-sum-exp (B, H, Q).

    The log-sum-exp is zero with the torch engine, which does not need it.
    """
    if settings.engine == "cpp":
        out, logsumexp = native.operators().carried_forward(
            q=q, k=k, v=v, old=old, hidden=hidden, **settings.cpp_arguments()
        )
        return out, logsumexp
    if settings.engine == "triton":
        from ._gpu import launch  # needs Triton

        return launch.carried_forward(q, k, v, old, hidden, settings)
    with full_precision(q):
        return _torch_forward(q, k, v, old, hidden, settings), hidden.new_zeros(q.shape[:3])


def backward(
    grad_out: Tensor,
    grad_hidden: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    hidden: Tensor,
    logsumexp: Tensor,
    *,
    grad_old: Tensor | None,
    grad_mask: Tensor | None,
    settings: CarriedSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; that of H_{n-1} is written into `grad_old`, which may be `hidden` itself.

    The gradient of an additive mask is added to `grad_mask`.
    """
    if settings.engine == "cpp":
        dq, dk, dv = native.operators().carried_backward(
            grad_out=grad_out,
            grad_hidden=grad_hidden,
            q=q,
            k=k,
            v=v,
            out=out,
            hidden=hidden,
            logsumexp=logsumexp,
            grad_old=grad_old,
            **settings.cpp_arguments(),
        )
        return dq, dk, dv
    if settings.engine == "triton":
        from ._gpu import launch

        return launch.carried_backward(
            grad_out, grad_hidden, q, k, v, out, hidden, logsumexp, grad_old=grad_old, settings=settings
        )
    with full_precision(q):
        output = StripBackward(grad_out, out, v, grad_mask, settings.softmax)
        dq, dk = _torch_backward(output, q, k, hidden, grad_hidden, grad_old, settings)
        return dq, dk, sum_groups(output.grad_values, v)


def _torch_forward(
    q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, new: Tensor, settings: CarriedSettings
) -> Tensor:
    heads, layout = q.shape[1], settings.layout
    count = q.shape[0] * heads
    queries, keys, values = (repeat_groups(t, heads, new.dtype) for t in (q, k, v))
    out = new.new_empty(count, q.shape[2], v.shape[3])
    old_strips = _views(settings.old_layout, old, count)
    for strip, hidden, before in zip(layout.strips(), layout.views(new, count), old_strips, strict=True):
        q_rows, k_columns = queries[:, strip.rows], keys[:, : strip.width].mT
        if before is None:  # beta = 0: what the buffer held before is never read
            torch.baddbmm(hidden, q_rows, k_columns, beta=0, alpha=settings.gain, out=hidden)
        else:
            before = before[..., : strip.width]
            torch.baddbmm(before, q_rows, k_columns, beta=settings.keep, alpha=settings.gain, out=hidden)
        if layout.causal:
            mask_future(hidden, strip)
        out[:, strip.rows] = strip_output(hidden, values, strip, settings.softmax)
    return out.view(*q.shape[:3], -1).to(v.dtype)


def _torch_backward(
    output: StripBackward,
    q: Tensor,
    k: Tensor,
    hidden: Tensor,
    grad_hidden: Tensor | None,
    grad_old: Tensor | None,
    settings: CarriedSettings,
) -> tuple[Tensor, Tensor]:
    heads, layout = q.shape[1], settings.layout
    count = q.shape[0] * heads
    queries, keys = (repeat_groups(t, heads, hidden.dtype) for t in (q, k))
    dq, dk = torch.empty_like(queries), torch.zeros_like(keys)
    for strip, scores, from_above, to_below in zip(
        layout.strips(),
        layout.views(hidden, count),
        _views(layout, grad_hidden, count),
        _views(settings.old_layout, grad_old, count),
        strict=True,
    ):
        gradient = output.grad_scores(scores, strip)
        if from_above is not None:
            gradient.add_(from_above)
        add_product_gradient(gradient, strip, queries, keys, dq, dk, settings.gain)
        if to_below is not None:
            torch.mul(gradient, settings.keep, out=to_below[..., : strip.width])
            to_below[..., strip.width :].zero_()
    return sum_groups(dq, q), sum_groups(dk, k)


def _views(layout: ScoreLayout, buffer: Tensor | None, heads: int) -> Iterator[Tensor | None]:
    if buffer is None:
        return iter([None] * len(layout.strips()))
    return layout.views(buffer, heads)
