"""Attention over one strip of query rows in torch operations, forward and backward, as `carried` and `stacked` use it.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size. A strip of scores is
(B * H, rows, width).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._dropout import dropout_factors
from ._tiling import TILE, ScoreLayout, Strip
from .state import score_dtype


@dataclass(frozen=True, slots=True)
class SoftmaxSettings:
    """Masks and dropout of one layer: they act on its softmax, not on the scores that it passes on."""

    shape: tuple[int, int, int, int]  # (B, H, Q, K)
    attn_mask: Tensor | None
    is_causal: bool
    dropout_p: float
    seed: int  # of the dropout

    @property
    def layout(self) -> ScoreLayout:
        return ScoreLayout(self.shape[2], self.shape[3], self.is_causal)

    def cpp_arguments(self) -> dict[str, Any]:
        """The keyword arguments that all C++ operators share."""
        return {
            "attn_mask": self.attn_mask,
            "is_causal": self.is_causal,
            "dropout_p": self.dropout_p,
            "seed": self.seed,
            "tile": TILE,
        }

    def strip_mask(self, strip: Strip) -> Tensor | None:
        """The mask of a strip, expanded to (B, H, rows, width)."""
        if self.attn_mask is None:
            return None
        return self.attn_mask.expand(self.shape)[:, :, strip.rows, : strip.width]

    def strip_dropout(self, strip: Strip, like: Tensor) -> Tensor | None:
        """Dropout factors of a strip (B * H, rows, width) in the dtype of `like`, or None without dropout."""
        if self.dropout_p == 0.0:
            return None
        batch, heads, queries, _ = self.shape
        shape = torch.Size((batch, heads, strip.stop - strip.start, strip.width))
        factors = dropout_factors(self.seed, self.dropout_p, shape, strip.start, queries, like.device)
        return factors.to(like.dtype).flatten(0, 1)


def mask_future(hidden: Tensor, strip: Strip) -> None:
    """Write -inf over the scores (B * H, rows, width) of later keys in a causal strip; nothing ever reads them."""
    rows = strip.stop - strip.start
    future = torch.ones(rows, rows, dtype=torch.bool, device=hidden.device).triu(1)
    hidden[:, :, strip.start :].masked_fill_(future, float("-inf"))


def strip_weights(hidden: Tensor, strip: Strip, softmax: SoftmaxSettings) -> Tensor:
    """Softmax of a strip before dropout, in new memory; a row whose keys are all masked gets zeros."""
    mask = softmax.strip_mask(strip)
    if mask is None:
        return torch.softmax(hidden, dim=-1)
    scores = hidden.view(*softmax.shape[:2], *hidden.shape[1:])
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    fully_masked = scores.amax(dim=-1, keepdim=True) == float("-inf")
    weights = torch.softmax(scores, dim=-1).masked_fill_(fully_masked, 0.0)
    return weights.to(hidden.dtype).flatten(0, 1)


def strip_output(hidden: Tensor, values: Tensor, strip: Strip, softmax: SoftmaxSettings) -> Tensor:
    """softmax(H_n) V of a strip (B * H, rows, Dv), with masks and dropout."""
    weights = strip_weights(hidden, strip, softmax)
    factors = softmax.strip_dropout(strip, hidden)
    if factors is not None:
        weights.mul_(factors)
    return weights @ values[:, : strip.width]


class StripBackward:
    """Backward pass of softmax(H_n) V, one strip after the other; sums the gradients of V and of an additive mask."""

    def __init__(
        self, grad_out: Tensor, out: Tensor, v: Tensor, grad_mask: Tensor | None, softmax: SoftmaxSettings
    ) -> None:
        heads, wide = softmax.shape[1], score_dtype(v.dtype)
        self.values, self.grad_out, wide_out = (repeat_groups(t, heads, wide) for t in (v, grad_out, out))
        # Sum over the keys of weight * its gradient, which the softmax gradient needs: (B * H, Q, 1)
        self.row_sums = (self.grad_out * wide_out).sum(dim=-1, keepdim=True)
        self.grad_values = torch.zeros_like(self.values)  # (B * H, K, Dv)
        self.grad_mask = grad_mask
        self.softmax = softmax

    def grad_scores(self, hidden: Tensor, strip: Strip) -> Tensor:
        """Gradient of a strip of H_n (B * H, rows, width) from this layer's output."""
        grad_out, width = self.grad_out[:, strip.rows], strip.width
        weights = strip_weights(hidden, strip, self.softmax)
        gradient = grad_out @ self.values[:, :width].mT
        factors = self.softmax.strip_dropout(strip, hidden)
        if factors is not None:
            gradient.mul_(factors)
        kept = weights if factors is None else weights * factors
        self.grad_values[:, :width].baddbmm_(kept.mT, grad_out)
        gradient.sub_(self.row_sums[:, strip.rows]).mul_(weights)
        if self.grad_mask is not None:
            _add_mask_gradient(self.grad_mask, gradient, strip, self.softmax)
        return gradient


def _add_mask_gradient(total: Tensor, gradient: Tensor, strip: Strip, softmax: SoftmaxSettings) -> None:
    """Add a strip's gradient (B * H, rows, width) to that of the mask, summed where the mask is broadcast."""
    gradient = gradient.view(*softmax.shape[:2], *gradient.shape[1:])
    total = total.view((1,) * (4 - total.dim()) + tuple(total.shape))
    part = total if total.shape[2] == 1 else total[:, :, strip.rows]
    part = part if total.shape[3] == 1 else part[..., : strip.width]
    part += gradient.sum_to_size(part.shape)


def repeat_groups(t: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """(B, G, T, D) -> (B * H, T, D): each key/value head repeated for its query heads."""
    if t.shape[1] != heads:
        t = t.repeat_interleave(heads // t.shape[1], dim=1)
    return t.to(dtype).reshape(-1, *t.shape[2:])


def sum_groups(t: Tensor, like: Tensor) -> Tensor:
    """(B * H, T, D) -> the shape and dtype of `like` (B, G, T, D): the adjoint of `repeat_groups`."""
    batch, groups = like.shape[:2]
    t = t.view(batch, groups, -1, *t.shape[1:])
    return (t[:, :, 0] if t.shape[2] == 1 else t.sum(dim=2)).to(like.dtype)


def full_precision(q: Tensor) -> torch.autocast:
    """A context without autocast, which would round the products of float32 scores."""
    return torch.autocast(q.device.type, enabled=False)


def refuse_second_order() -> None:
    """Raise in a backward pass that is itself differentiated: the tiles would silently leave terms out."""
    if torch.is_grad_enabled():
        raise RuntimeError("gradients of gradients (create_graph=True) need backend='reference'.")
