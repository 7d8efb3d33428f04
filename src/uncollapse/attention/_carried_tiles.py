"""One layer of `carried`, forward and backward, in C++, in Triton, or strip by strip in torch operations.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size. Score buffers are flat
(`ScoreLayout`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _native as native
from ._coefficients import Coefficient, column, numbers, scaled
from ._gpu import availability as gpu
from ._pool import POOL
from ._storage import as_scores, buffer_dtype, in_two_bytes
from ._strips import (
    SoftmaxSettings,
    StripBackward,
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

    keep: Coefficient  # 0 where nothing is inherited
    gain: Coefficient  # take * scale
    old_causal: bool  # whether H_{n-1} has the causal layout
    softmax: SoftmaxSettings
    engine: Engine
    stored: torch.dtype  # of H_n in memory

    @property
    def layout(self) -> ScoreLayout:
        return self.softmax.layout

    @property
    def old_layout(self) -> ScoreLayout:
        return ScoreLayout(self.layout.queries, self.layout.keys, self.old_causal)

    def new_buffer(self, layout: ScoreLayout, q: Tensor) -> Tensor:
        """Uninitialised scores of all heads of `q`."""
        return POOL.take(q.shape[0] * q.shape[1] * layout.per_head, buffer_dtype(self.stored), q.device)

    def cpp_arguments(self) -> dict[str, Any]:
        """The keyword arguments of the C++ operators."""
        own = {"keep": numbers(self.keep), "gain": numbers(self.gain), "old_causal": self.old_causal}
        return {**own, **self.softmax.cpp_arguments()}


class CarriedGradients(NamedTuple):
    """What the backward pass of a layer returns; the gradients of the coefficients are for each sample and head."""

    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor  # (B, H), 0 unless H_{n-1} was at hand
    gain: Tensor  # (B, H)


def forward(
    q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, hidden: Tensor, settings: CarriedSettings
) -> tuple[Tensor, Tensor]:
    """Write H_n into `hidden`, which may be `old` itself; return the output and each row's log-sum-exp (B, H, Q).

    The log-sum-exp is zero with the torch engine, which does not need it.
    """
    if settings.engine == "cpp":
        out, logsumexp = native.operators("tiles").carried_forward(
            q=q, k=k, v=v, old=old, hidden=hidden, **settings.cpp_arguments()
        )
        return out, logsumexp
    if settings.engine == "triton":
        from ._gpu import launch  # needs Triton

        return launch.carried_forward(q, k, v, old, hidden, settings)
    with full_precision(q):
        out = _torch_forward(q, k, v, old, hidden, settings)
        return out, out.new_zeros(q.shape[:3], dtype=score_dtype(q.dtype))


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
    old: Tensor | None = None,
    reverse: bool = False,
) -> CarriedGradients:
    """Gradients of the inputs; that of H_{n-1} is written into `grad_old`, which may be `hidden` or `grad_hidden`.

    The gradient of an additive mask is added to `grad_mask`. That of keep needs H_{n-1}: from `old`, or with `reverse`,
    which makes H_{n-1} of H_n and writes it over `hidden`.
    """
    if settings.engine == "cpp":
        found = native.operators("tiles").carried_backward(
            grad_out=grad_out,
            grad_hidden=grad_hidden,
            q=q,
            k=k,
            v=v,
            out=out,
            hidden=hidden,
            logsumexp=logsumexp,
            grad_old=grad_old,
            old=old,
            reverse=reverse,
            **settings.cpp_arguments(),
        )
        return CarriedGradients(*found)
    if settings.engine == "triton" and not reverse:
        from ._gpu import launch

        return CarriedGradients(
            *launch.carried_backward(
                grad_out, grad_hidden, q, k, v, out, hidden, logsumexp, old, grad_old=grad_old, settings=settings
            )
        )
    if settings.engine == "triton":
        gpu.say_fallback("the backward pass runs the recursion backwards")
    with full_precision(q):
        output = StripBackward(grad_out, out, v, grad_mask, settings.softmax)
        dq, dk, dkeep, dgain = _torch_backward(output, q, k, hidden, grad_hidden, grad_old, old, reverse, settings)
        return CarriedGradients(dq, dk, sum_groups(output.grad_values, v), dkeep, dgain)


def _torch_forward(
    q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, new: Tensor, settings: CarriedSettings
) -> Tensor:
    heads, layout, wide = q.shape[1], settings.layout, score_dtype(q.dtype)
    count = q.shape[0] * heads
    queries, keys, values = (repeat_groups(t, heads, wide) for t in (q, k, v))
    queries = scaled(queries, settings.gain)
    out = values.new_empty(count, q.shape[2], v.shape[3])
    old_strips = _views(settings.old_layout, old, count)
    for strip, stored, before in zip(layout.strips(), layout.views(as_scores(new), count), old_strips, strict=True):
        direct = stored.dtype == wide
        hidden = stored if direct else stored.new_empty(stored.shape, dtype=wide)
        before = None if before is None else before[..., : strip.width].to(wide)
        _inherit(before, queries[:, strip.rows], keys[:, : strip.width].mT, settings.keep, hidden)
        if layout.causal:
            mask_future(hidden, strip)
        if not direct:
            stored.copy_(in_two_bytes(hidden))
            hidden.copy_(stored)  # the softmax sees what is stored
        out[:, strip.rows] = strip_output(hidden, values, strip, settings.softmax)
    return out.view(*q.shape[:3], -1).to(v.dtype)


def _inherit(before: Tensor | None, queries: Tensor, keys: Tensor, keep: Coefficient, hidden: Tensor) -> None:
    """H_n = keep H_{n-1} + Q K^T of a strip; what `hidden` held is never read unless it is H_{n-1}."""
    if before is None:
        torch.baddbmm(hidden, queries, keys, beta=0, out=hidden)
    elif isinstance(keep, Tensor):
        torch.mul(before, column(keep, before.shape[0]), out=hidden)
        hidden.baddbmm_(queries, keys)
    else:
        torch.baddbmm(before, queries, keys, beta=keep, out=hidden)


def _torch_backward(
    output: StripBackward,
    q: Tensor,
    k: Tensor,
    hidden: Tensor,
    grad_hidden: Tensor | None,
    grad_old: Tensor | None,
    old: Tensor | None,
    reverse: bool,
    settings: CarriedSettings,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads, layout, wide = q.shape[1], settings.layout, score_dtype(q.dtype)
    count = q.shape[0] * heads
    queries, keys = (repeat_groups(t, heads, wide) for t in (q, k))
    gained = scaled(queries, settings.gain)
    dq, dk = torch.empty_like(queries), torch.zeros_like(keys)  # dq without the gain
    keep, dkeep = column(settings.keep, count), queries.new_zeros(count)
    for strip, scores, from_above, to_below, before in zip(
        layout.strips(),
        layout.views(as_scores(hidden), count),
        _gradient_views(layout, grad_hidden, count),
        _gradient_views(settings.old_layout, grad_old, count),
        _views(settings.old_layout, old, count),
        strict=True,
    ):
        gradient = output.grad_scores(scores.to(wide), strip)
        if from_above is not None:
            gradient.add_(from_above)
        k_rows = keys[:, : strip.width]
        dq[:, strip.rows] = gradient @ k_rows
        dk[:, : strip.width].baddbmm_(gradient.mT, gained[:, strip.rows])
        if to_below is not None:
            to_below[..., : strip.width] = gradient * keep
            to_below[..., strip.width :].zero_()
        if reverse:
            before = scores.baddbmm_(gained[:, strip.rows], k_rows.mT, alpha=-1).div_(keep)
        if before is not None:
            seen = before[..., : strip.width].to(wide)
            seen = seen.tril(strip.start) if layout.causal else seen  # later keys hold -inf
            dkeep += (gradient * seen).sum(dim=(1, 2))
    dgain = (queries * dq).sum(dim=(1, 2))
    pair = (q.shape[0], heads)
    return sum_groups(scaled(dq, settings.gain), q), sum_groups(dk, k), dkeep.view(pair), dgain.view(pair)


def _views(layout: ScoreLayout, buffer: Tensor | None, heads: int) -> Iterator[Tensor | None]:
    if buffer is None:
        return iter([None] * len(layout.strips()))
    return layout.views(as_scores(buffer), heads)


def _gradient_views(layout: ScoreLayout, buffer: Tensor | None, heads: int) -> Iterator[Tensor | None]:
    if buffer is None:
        return iter([None] * len(layout.strips()))
    return layout.views(buffer, heads)
