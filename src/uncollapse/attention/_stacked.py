"""The backend `stacked`: exact in memory linear in the sequence, past queries and keys handed from layer to layer.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _stacked_operators as operators
from . import _stacked_tiles as tiles
from ._coefficients import Coefficient, as_tensor
from ._dropout import draw_seed, draw_seed_tensor
from ._engine import tile_engine
from ._stacked_tiles import StackedSettings
from ._strips import SoftmaxSettings, refuse_second_order
from .state import Engine, HiddenState, score_dtype

CHANGED = (
    "the queries or keys of an earlier layer were changed in place after their attention, so the scores of this state "
    "are lost; change a copy instead, or use backend='carried', which keeps the scores themselves."
)


class ScoreTerm(NamedTuple):
    """One layer's term of H_n: weight Q K^T."""

    q: Tensor  # (B, H, Q, D)
    k: Tensor  # (B, G, K, D)
    weight: Coefficient
    versions: tuple[int, ...]  # of q and k when the layer ran; empty where torch does not count changes

    def check(self) -> None:
        """Raise if q or k was changed in place since."""
        if self.versions and self.versions != _versions(self.q, self.k):
            raise RuntimeError(CHANGED)


def _versions(q: Tensor, k: Tensor) -> tuple[int, ...]:
    if torch.compiler.is_compiling() or q.is_inference() or k.is_inference():
        return ()
    return q._version, k._version


class StackedState(HiddenState):
    """H_n as the terms it is the sum of: H_n = sum_l weight_l Q_l K_l^T.

    `scores()` computes the matrix when it is called, and is differentiable. A state is never consumed.
    """

    backend = "stacked"

    def __init__(self, layer: int, terms: tuple[ScoreTerm, ...], engine: Engine) -> None:
        q, k = terms[-1].q, terms[-1].k
        super().__init__(layer, (*q.shape[:3], k.shape[2]), score_dtype(q.dtype), q.device, engine)
        self.terms = terms

    def scores(self) -> Tensor:
        return self.rows(0, self.shape[2])

    def rows(self, start: int, stop: int) -> Tensor:
        total = None
        for term in self.terms:
            term.check()
            q, k = term.q, term.k.repeat_interleave(term.q.shape[1] // term.k.shape[1], dim=1)
            weight = term.weight.view(-1, 1, 1) if isinstance(term.weight, Tensor) else term.weight
            part = weight * (q[:, :, start:stop].to(self.dtype) @ k.to(self.dtype).mT)
            total = part if total is None else total + part
        assert total is not None  # a state has at least its own layer
        return total

    def clone(self) -> StackedState:
        return StackedState(self.layer, tuple(cloned_term(term) for term in self.terms), self.engine)


def cloned_term(term: ScoreTerm) -> ScoreTerm:
    """A copy whose queries and keys nobody else can change."""
    term.check()
    q, k = term.q.clone(), term.k.clone()
    return ScoreTerm(q, k, term.weight, _versions(q, k))


def stacked_attention(
    q: Tensor,  # (B, H, Q, D)
    k: Tensor,  # (B, G, K, D)
    v: Tensor,  # (B, G, K, Dv)
    state: StackedState | None,
    *,
    keep: Coefficient,
    take: Coefficient,
    scale: float,
    stored: torch.dtype,  # of scores that are kept: none are
    attn_mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
    window: int | None = None,
) -> tuple[Tensor, StackedState]:
    """One layer: out = softmax(sum_l weight_l Q_l K_l^T) V over the layers so far, or the last `window` of them."""
    terms = next_terms(() if state is None else state.terms, q, k, keep, take * scale, window)
    out, engine = terms_attention(v, terms, attn_mask, is_causal, dropout_p)
    return out, StackedState(1 if state is None else state.layer + 1, terms, engine)


def terms_attention(
    v: Tensor, terms: tuple[ScoreTerm, ...], attn_mask: Tensor | None, is_causal: bool, dropout_p: float
) -> tuple[Tensor, Engine]:
    """softmax(H_n) V with H_n as the sum of its terms, and what ran it."""
    q, k = terms[-1].q, terms[-1].k
    qs, ks = [t.q for t in terms], [t.k for t in terms]
    same_shape = all(t.q.shape == q.shape and t.k.shape == k.shape for t in terms)
    engine: Engine = tile_engine(q, attn_mask, v) if same_shape else "torch"  # C++ lays the terms side by side
    learned = any(isinstance(t.weight, Tensor) for t in terms)
    if torch.compiler.is_compiling():
        out, _ = operators.stacked_forward(
            qs,
            ks,
            v,
            torch.stack([as_tensor(t.weight, q) for t in terms]),
            attn_mask,
            draw_seed_tensor(dropout_p),
            is_causal=is_causal,
            dropout_p=dropout_p,
            engine=engine,
        )
        return out, engine
    softmax = SoftmaxSettings((*q.shape[:3], k.shape[2]), attn_mask, is_causal, dropout_p, draw_seed(dropout_p))
    weights = torch.stack([as_tensor(t.weight, q) for t in terms]) if learned else None  # (L, H)
    numbers = tuple(t.weight for t in terms) if weights is None else weights.detach().unbind()
    settings = StackedSettings(numbers, softmax, engine)
    if torch.is_grad_enabled():
        out = StackedLayer.apply(settings, v, weights, attn_mask, *qs, *ks)  # type: ignore[no-untyped-call]
    else:
        out, _ = tiles.forward(qs, ks, v, settings)
    return out, engine


def next_terms(
    terms: tuple[ScoreTerm, ...], q: Tensor, k: Tensor, keep: Coefficient, gain: Coefficient, window: int | None = None
) -> tuple[ScoreTerm, ...]:
    """The terms of the next layer's scores: those before, weakened by keep, and gain Q K^T."""
    for term in terms:
        term.check()
    inherited = tuple(term._replace(weight=keep * term.weight) for term in terms)
    return _significant((*inherited, ScoreTerm(q, k, gain, _versions(q, k))), window)


def _significant(terms: tuple[ScoreTerm, ...], window: int | None) -> tuple[ScoreTerm, ...]:
    """The terms of the last `window` layers whose weight is above the rounding of the largest term.

    A learned weight may have grown by the next step, and its gradient counts as well: its term stays.
    """
    terms = terms if window is None else terms[-window:]
    if any(isinstance(t.weight, Tensor) for t in terms):
        return terms
    largest = max(abs(float(t.weight)) for t in terms)
    rounding = torch.finfo(score_dtype(terms[-1].q.dtype)).eps * largest
    older = tuple(t for t in terms[:-1] if abs(float(t.weight)) > rounding)
    return (*older, terms[-1])  # the newest stays whatever its weight: its inputs are part of the graph


class StackedLayer(torch.autograd.Function):
    """One layer under autograd; the queries and keys of every term get their share of its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: StackedSettings,
        v: Tensor,
        weights: Tensor | None,
        attn_mask: Tensor | None,
        *queries_and_keys: Tensor,
    ) -> Tensor:
        qs, ks = _halves(queries_and_keys)
        out, logsumexp = tiles.forward(qs, ks, v, settings)
        ctx.save_for_backward(v, out, logsumexp, attn_mask, *queries_and_keys)
        ctx.settings = settings
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_order()
        settings: StackedSettings = ctx.settings
        v, out, logsumexp, mask, *queries_and_keys = ctx.saved_tensors
        qs, ks = _halves(queries_and_keys)
        _, _, needs_weights, needs_mask, *_ = ctx.needs_input_grad
        grad_mask = torch.zeros_like(mask) if needs_mask and mask is not None else None
        dqs, dks, dv, dweights = tiles.backward(
            grad_out, qs, ks, v, out, logsumexp, grad_mask=grad_mask, settings=settings
        )
        return None, dv, dweights.sum(dim=1) if needs_weights else None, grad_mask, *dqs, *dks


def _halves(queries_and_keys: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    depth = len(queries_and_keys) // 2
    return queries_and_keys[:depth], queries_and_keys[depth:]
