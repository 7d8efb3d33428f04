"""One layer of `stacked`, forward and backward: strips of H_n computed from past queries and keys when needed.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _native as native
from ._coefficients import Coefficient, numbers, scaled
from ._strips import (
    SoftmaxSettings,
    StripBackward,
    full_precision,
    mask_future,
    repeat_groups,
    strip_output,
    sum_groups,
)
from ._tiling import TILE, Strip
from .state import Engine, score_dtype

LONG = 2048  # keys from which on several layers side by side no longer fit into the cache, and taller strips pay


@dataclass(frozen=True, slots=True)
class StackedSettings:
    """One layer of `stacked`: H_n = sum_l weights[l] Q_l K_l^T, out = softmax(H_n) V."""

    weights: tuple[Coefficient, ...]  # numbers, or (H,) for all of them
    softmax: SoftmaxSettings
    engine: Engine
    cap: float = 0.0  # of the scores, 0 for none; only with cpp

    def cpp_arguments(self) -> dict[str, Any]:
        """The keyword arguments of the C++ operators."""
        weights = [number for weight in self.weights for number in numbers(weight)]
        long = len(self.weights) > 1 and self.softmax.shape[3] >= LONG
        tile = 2 * TILE if long else TILE
        return {"weights": weights, "cap": self.cap, **self.softmax.cpp_arguments(), "tile": tile}


def forward(qs: Sequence[Tensor], ks: Sequence[Tensor], v: Tensor, settings: StackedSettings) -> tuple[Tensor, Tensor]:
    """The output and each row's log-sum-exp (B, H, Q), zero with the torch engine, which does not need it."""
    if settings.engine == "cpp":
        out, logsumexp = native.operators("tiles").stacked_forward(qs=qs, ks=ks, v=v, **settings.cpp_arguments())
        return out, logsumexp
    if settings.engine == "triton":
        from ._gpu import launch  # needs Triton

        return launch.stacked_forward(qs, ks, v, settings)
    with full_precision(v):
        logsumexp = v.new_zeros(settings.softmax.shape[:3], dtype=score_dtype(v.dtype))
        return _torch_forward(qs, ks, v, settings), logsumexp


def backward(
    grad_out: Tensor,
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    *,
    grad_mask: Tensor | None,
    settings: StackedSettings,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Gradients of all queries, of all keys, of v and of the weights (L, B, H).

    That of an additive mask is added to `grad_mask`.
    """
    if settings.engine == "cpp":
        dv, dqs, dks, dweights = native.operators("tiles").stacked_backward(
            grad_out=grad_out, qs=qs, ks=ks, v=v, out=out, logsumexp=logsumexp, **settings.cpp_arguments()
        )
        return dqs, dks, dv, dweights
    if settings.engine == "triton":
        from ._gpu import launch

        return launch.stacked_backward(grad_out, qs, ks, v, out, logsumexp, settings=settings)
    with full_precision(v):
        output = StripBackward(grad_out, out, v, grad_mask, settings.softmax)
        dqs, dks, dweights = _torch_backward(output, qs, ks, settings)
        return dqs, dks, sum_groups(output.grad_values, v), dweights


def write_scores(qs: Sequence[Tensor], ks: Sequence[Tensor], hidden: Tensor, settings: StackedSettings) -> None:
    """Write H_n into a flat buffer of scores."""
    queries, keys = (_repeat_all(many, settings) for many in (qs, ks))
    layout, count = settings.softmax.layout, queries[0].shape[0]
    weighted = _weighted(queries, settings)
    with full_precision(hidden):
        for strip, part in zip(layout.strips(), layout.views(hidden, count), strict=True):
            part.copy_(_strip_scores(weighted, keys, strip, settings))


def _torch_forward(qs: Sequence[Tensor], ks: Sequence[Tensor], v: Tensor, settings: StackedSettings) -> Tensor:
    softmax, wide = settings.softmax, score_dtype(v.dtype)
    queries, keys = (_repeat_all(many, settings) for many in (qs, ks))
    queries = _weighted(queries, settings)
    values = repeat_groups(v, softmax.shape[1], wide)
    out = values.new_empty(values.shape[0], softmax.shape[2], v.shape[3])
    for strip in softmax.layout.strips():
        hidden = _strip_scores(queries, keys, strip, settings)
        out[:, strip.rows] = strip_output(hidden, values, strip, softmax)
    return out.view(*softmax.shape[:3], -1).to(v.dtype)


def _torch_backward(
    output: StripBackward, qs: Sequence[Tensor], ks: Sequence[Tensor], settings: StackedSettings
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    queries, keys = (_repeat_all(many, settings) for many in (qs, ks))
    weighted = _weighted(queries, settings)
    dqs, dks = [torch.empty_like(q) for q in queries], [torch.zeros_like(k) for k in keys]  # dqs without the weights
    for strip in settings.softmax.layout.strips():
        gradient = output.grad_scores(_strip_scores(weighted, keys, strip, settings), strip)
        for q, k, dq, dk in zip(weighted, keys, dqs, dks, strict=True):
            dq[:, strip.rows] = gradient @ k[:, : strip.width]
            dk[:, : strip.width].baddbmm_(gradient.mT, q[:, strip.rows])
    dweights = torch.stack([(q * dq).sum(dim=(1, 2)) for q, dq in zip(queries, dqs, strict=True)])
    grad_qs = [sum_groups(dq, q) for dq, q in zip(_weighted(dqs, settings), qs, strict=True)]
    grad_ks = [sum_groups(dk, k) for dk, k in zip(dks, ks, strict=True)]
    return grad_qs, grad_ks, dweights.view(len(qs), *settings.softmax.shape[:2])


def _repeat_all(many: Sequence[Tensor], settings: StackedSettings) -> list[Tensor]:
    return [repeat_groups(t, settings.softmax.shape[1], score_dtype(t.dtype)) for t in many]


def _weighted(many: Sequence[Tensor], settings: StackedSettings) -> list[Tensor]:
    return [scaled(t, weight) for t, weight in zip(many, settings.weights, strict=True)]


def _strip_scores(weighted: list[Tensor], keys: list[Tensor], strip: Strip, settings: StackedSettings) -> Tensor:
    """H_n of one strip (B * H, rows, width) from weighted queries."""
    hidden = keys[0].new_empty(keys[0].shape[0], strip.stop - strip.start, strip.width)
    for index, (q, k) in enumerate(zip(weighted, keys, strict=True)):
        hidden.baddbmm_(q[:, strip.rows], k[:, : strip.width].mT, beta=float(index > 0))
    if settings.softmax.is_causal:
        mask_future(hidden, strip)
    return hidden
