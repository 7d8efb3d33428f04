"""The backend `stacked`: exact in memory linear in the sequence, past queries and keys handed from layer to layer.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _compiled as compiled
from . import _native as native
from . import _stacked_tiles as tiles
from ._dropout import draw_seed
from ._rows import MaskDropout, refuse_second_order
from ._stacked_tiles import StackedStep
from .state import HiddenState, score_dtype


class ScoreTerm(NamedTuple):
    """What one layer adds to H_n: weight Q K^T."""

    q: Tensor  # (B, H, Q, D)
    k: Tensor  # (B, G, K, D)
    weight: float


class StackedState(HiddenState):
    """H_n as the layers it is the sum of: H_n = sum_l weight_l Q_l K_l^T.

    `scores()` makes the matrix when it is called, and is differentiable. Nothing is ever consumed.
    """

    backend = "stacked"

    def __init__(self, layer: int, past: tuple[ScoreTerm, ...]) -> None:
        q, k, _ = past[-1]
        super().__init__(layer, (*q.shape[:3], k.shape[2]), score_dtype(q.dtype), q.device)
        self.past = past

    def scores(self) -> Tensor:
        return self.rows(0, self.shape[2])

    def rows(self, start: int, stop: int) -> Tensor:
        total = None
        for q, k, weight in self.past:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            part = weight * (q[:, :, start:stop].to(self.dtype) @ k.to(self.dtype).mT)
            total = part if total is None else total + part
        assert total is not None  # a state has at least its own layer
        return total

    def clone(self) -> StackedState:
        return StackedState(self.layer, tuple(ScoreTerm(q.clone(), k.clone(), w) for q, k, w in self.past))


def stacked_attention(
    q: Tensor,  # (B, H, Q, D)
    k: Tensor,  # (B, G, K, D)
    v: Tensor,  # (B, G, K, Dv)
    state: StackedState | None,
    *,
    keep: float,
    take: float,
    scale: float,
    attn_mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
    window: int | None = None,
) -> tuple[Tensor, StackedState]:
    """One layer: out = softmax(sum_l weight_l Q_l K_l^T) V over the layers so far, or the last `window` of them."""
    before = () if state is None else tuple(ScoreTerm(p.q, p.k, keep * p.weight) for p in state.past)
    past = _significant((*before, ScoreTerm(q, k, take * scale)), window)
    qs, ks, weights = [p.q for p in past], [p.k for p in past], [p.weight for p in past]
    new = StackedState(1 if state is None else state.layer + 1, past)
    alike = all(p.q.shape == q.shape and p.k.shape == k.shape for p in past)  # else they do not fit side by side
    in_cpp = alike and native.serves(q, attn_mask)
    if torch.compiler.is_compiling():
        return compiled.stacked(qs, ks, v, attn_mask, weights, is_causal, dropout_p, in_cpp), new
    mask_dropout = MaskDropout((*q.shape[:3], k.shape[2]), attn_mask, is_causal, dropout_p, draw_seed(dropout_p))
    terms = StackedStep(tuple(weights), mask_dropout, in_cpp)
    if torch.is_grad_enabled():
        out = StackedLayer.apply(terms, v, attn_mask, *qs, *ks)  # type: ignore[no-untyped-call]
    else:
        out, _ = tiles.forward(qs, ks, v, terms)
    return out, new


def _significant(past: tuple[ScoreTerm, ...], window: int | None) -> tuple[ScoreTerm, ...]:
    """The layers of the window whose weight is not lost in the rounding of the largest one's scores."""
    past = past if window is None else past[-window:]
    largest = max(abs(p.weight) for p in past)
    rounding = torch.finfo(score_dtype(past[-1].q.dtype)).eps * largest
    older = tuple(p for p in past[:-1] if abs(p.weight) > rounding)
    return (*older, past[-1])  # the newest stays whatever its weight: its inputs are part of the graph


class StackedLayer(torch.autograd.Function):
    """One layer under autograd; every past layer's queries and keys get their share of its gradient."""

    @staticmethod
    def forward(ctx: Any, terms: StackedStep, v: Tensor, attn_mask: Tensor | None, *past: Tensor) -> Tensor:
        qs, ks = _halves(past)
        out, logsumexp = tiles.forward(qs, ks, v, terms)
        ctx.save_for_backward(v, out, logsumexp, *past)
        ctx.terms = terms
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_order()
        v, out, logsumexp, *past = ctx.saved_tensors
        qs, ks = _halves(past)
        mask = ctx.terms.mask_dropout.attn_mask
        grad_mask = torch.zeros_like(mask) if mask is not None and ctx.needs_input_grad[2] else None
        dv, dqs, dks = tiles.backward(grad_out, qs, ks, v, out, logsumexp, grad_mask, ctx.terms)
        return None, dv, grad_mask, *dqs, *dks


def _halves(past: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    half = len(past) // 2
    return past[:half], past[half:]
