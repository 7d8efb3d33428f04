"""The backend `reversible`: one score matrix for all layers, run backwards in the backward pass.

    H_n = keep H_{n-1} + gain Q_n K_n^T    forwards, written over H_{n-1}
    H_{n-1} = (H_n - gain Q_n K_n^T) / keep    backwards, written over H_n

Each step backwards divides the rounding of the one before by keep. Before the error could exceed `LIMIT`, H_n is made
afresh from the queries and keys of the layers up to n, as `stacked` does; so no matrix is kept in between. The backward
pass needs two matrices, H and its gradient, whatever the depth.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from . import _carried_tiles as tiles
from . import _stacked_tiles as stacked_tiles
from ._carried import needs_gradient, refuse_leaving_causality, rows_of
from ._carried_tiles import CarriedSettings
from ._coefficients import Coefficient, numbers, values_of
from ._dropout import draw_seed
from ._engine import tile_engine
from ._pool import POOL
from ._stacked import ScoreTerm, cloned_term, next_terms, terms_attention
from ._stacked_tiles import StackedSettings
from ._strips import SoftmaxSettings, refuse_second_order
from ._tiling import ScoreLayout
from .state import Engine, HiddenState, score_dtype

LIMIT = 1e-4  # of the error of H_n, which is the relative error of an attention weight
ROUNDINGS = 1.0  # error of a step, in units of the rounding at the size of the scores; 0.05 to 0.5 measured
SMALLEST_KEEP = 0.1  # below it hardly a step can be taken


class RunningScores:
    """The one buffer of a forward pass: which layer's scores it holds, and by how much they may be off."""

    def __init__(self, shape: tuple[int, int, int, int], causal: bool, like: Tensor) -> None:
        self.shape, self.causal = shape, causal
        self.dtype, self.device = score_dtype(like.dtype), like.device
        self.buffer: Tensor | None = None
        self.layer: int | None = None  # whose H the buffer holds
        self.error = 0.0  # of that H, at most
        self.backwards = False  # once a backward pass has begun, a forward pass takes a buffer of its own
        self.gradient: weakref.ref[Tensor] | None = None  # the last one handed down: it may be written over

    @property
    def layout(self) -> ScoreLayout:
        return ScoreLayout(self.shape[2], self.shape[3], self.causal)

    def new_buffer(self) -> Tensor:
        return POOL.take(self.shape[0] * self.shape[1] * self.layout.per_head, self.dtype, self.device)

    def holds(self, layer: int) -> bool:
        return self.buffer is not None and self.layer == layer

    def scores(self, layer: int, terms: tuple[ScoreTerm, ...]) -> Tensor:
        """H of a layer: the buffer if it holds them, else made afresh from their terms."""
        if self.holds(layer):
            assert self.buffer is not None
            return self.buffer
        made = self.new_buffer()
        for term in terms:
            term.check()
        softmax = SoftmaxSettings(self.shape, None, self.causal, 0.0, 0)
        weights = tuple(values_of(t.weight) for t in terms)
        with torch.no_grad():
            qs, ks = [t.q.detach() for t in terms], [t.k.detach() for t in terms]
            stacked_tiles.write_scores(qs, ks, made, StackedSettings(weights, softmax, "torch"))
        return made

    def set(self, buffer: Tensor | None, layer: int | None, error: float = 0.0) -> None:
        self.buffer, self.layer, self.error = buffer, layer, error


class ReversibleState(HiddenState):
    """H_n in a buffer that the next layer writes over; an earlier state makes its scores afresh, and is never used up.

    `scores()` is a copy and differentiable.
    """

    backend = "reversible"

    def __init__(
        self,
        layer: int,
        running: RunningScores,
        edge: Tensor,
        terms: tuple[ScoreTerm, ...],
        size: Tensor,
        engine: Engine,
    ) -> None:
        super().__init__(layer, running.shape, running.dtype, running.device, engine)
        self.running, self.terms = running, terms
        self.edge = edge  # stands for H_n in autograd: its shape without its memory
        self.size = size  # of the scores

    @property
    def causal(self) -> bool:
        return self.running.causal

    def scores(self) -> Tensor:
        return self.rows(0, self.shape[2])

    def rows(self, start: int, stop: int) -> Tensor:
        hidden: Tensor = _Readable.apply(self.edge, self.running.scores(self.layer, self.terms))  # type: ignore[no-untyped-call]
        return rows_of(hidden, self.shape, self.causal, start, stop)

    def clone(self) -> ReversibleState:
        running = RunningScores(self.shape, self.causal, self.terms[-1].q)
        running.set(self.running.scores(self.layer, self.terms).clone(), self.layer, self.running.error)
        terms = tuple(cloned_term(term) for term in self.terms)
        return ReversibleState(self.layer, running, self.edge, terms, self.size, self.engine)


class _Readable(torch.autograd.Function):
    """A copy of the scores, whose gradient goes to the edge that stands for them."""

    @staticmethod
    def forward(ctx: Any, edge: Tensor, hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def reversible_attention(
    q: Tensor,  # (B, H, Q, D)
    k: Tensor,  # (B, G, K, D)
    v: Tensor,  # (B, G, K, Dv)
    state: ReversibleState | None,
    *,
    keep: Coefficient,
    take: Coefficient,
    scale: float,
    stored: torch.dtype,
    attn_mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
) -> tuple[Tensor, ReversibleState]:
    """One layer: H_n = keep H_{n-1} + take S_n, out = softmax(H_n) V."""
    old_causal = is_causal if state is None else state.causal
    refuse_leaving_causality(old_causal, is_causal)
    if state is not None:
        refuse_small(keep)
    gain, engine = take * scale, tile_engine(q, attn_mask, v)
    terms = next_terms(() if state is None else state.terms, q, k, keep, gain)
    size = _largest_score(q, k, keep, gain, state)
    layer, shape = 1 if state is None else state.layer + 1, (*q.shape[:3], k.shape[2])
    if torch.compiler.is_compiling():  # a compiled graph cannot share a buffer: no matrix at all is kept in it
        out, engine = terms_attention(v, terms, attn_mask, is_causal, dropout_p)
        edge = q.new_zeros((), dtype=score_dtype(q.dtype))
        return out, ReversibleState(layer, RunningScores(shape, is_causal, q), edge, terms, size, engine)
    softmax = SoftmaxSettings(shape, attn_mask, is_causal, dropout_p, draw_seed(dropout_p))
    settings = CarriedSettings(values_of(keep), values_of(gain), old_causal, softmax, engine, score_dtype(q.dtype))
    step = LayerStep(layer, state, settings, terms, size)
    edge_before = None if state is None else state.edge
    if needs_gradient(q, k, v, edge_before, keep, gain, attn_mask):
        out, edge = ReversibleLayer.apply(q, k, v, edge_before, keep, gain, attn_mask, step)  # type: ignore[no-untyped-call]
    else:
        out, _ = step.forward(q, k, v)
        edge = step.new_edge(q)
    return out, ReversibleState(layer, step.running, edge, terms, size, engine)


def refuse_small(keep: Coefficient) -> None:
    """Raise where the recursion cannot be run backwards; a learned keep is looked at in the backward pass."""
    if not isinstance(keep, Tensor) and keep < SMALLEST_KEEP:
        raise ValueError(
            f"backend 'reversible' divides by keep, the weight of the inherited scores, and keep = {keep:g} is below "
            f"{SMALLEST_KEEP:g}: rounding would grow too fast; use backend='carried' or 'stacked'."
        )


def _largest_score(q: Tensor, k: Tensor, keep: Coefficient, gain: Coefficient, state: ReversibleState | None) -> Tensor:
    """The size of |H_n|: a score is at most the product of the norms of its query and its key.

    Layers are added in quadrature, as scores that do not depend on one another are. If all layers had the same queries
    and keys, H_n would be larger by the root of their number at most, which `ROUNDINGS` leaves room for.
    """
    with torch.no_grad():
        if q.numel() == 0 or k.numel() == 0:
            return q.new_zeros(())
        longest_q, longest_k = (
            torch.linalg.vector_norm(t.detach(), dim=-1, dtype=score_dtype(q.dtype)).amax() for t in (q, k)
        )
        bound: Tensor = longest_q * longest_k * _largest(gain)
        return bound if state is None else torch.hypot(bound, _largest(keep) * state.size)


def _largest(value: Coefficient) -> Coefficient:
    return value.detach().abs().amax() if isinstance(value, Tensor) else abs(value)


class LayerStep:
    """One layer's step of the recursion, forwards and backwards."""

    def __init__(
        self,
        layer: int,
        state: ReversibleState | None,
        settings: CarriedSettings,
        terms: tuple[ScoreTerm, ...],
        size: Tensor,
    ) -> None:
        self.layer, self.settings, self.terms, self.size = layer, settings, terms, size
        self.before = None if state is None else (state.running, state.terms)
        q = terms[-1].q
        self.in_place = state is not None and self._can_continue(state.running)
        shape, causal = settings.softmax.shape, settings.softmax.is_causal
        self.running = state.running if state is not None and self.in_place else RunningScores(shape, causal, q)

    def _can_continue(self, running: RunningScores) -> bool:
        """Whether H_n may be written over H_{n-1}: nobody else needs it, and it lies in memory in the same way."""
        if running.backwards or not running.holds(self.layer - 1) or running.layout != self.settings.layout:
            return False
        assert running.buffer is not None
        return not running.buffer.is_inference() or torch.is_inference_mode_enabled()

    def new_edge(self, q: Tensor) -> Tensor:
        count = q.shape[0] * q.shape[1] * self.settings.layout.per_head
        return q.new_zeros((), dtype=score_dtype(q.dtype)).expand(count)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        old = None if self.before is None else self.before[0].scores(self.layer - 1, self.before[1])
        hidden = old if self.in_place and old is not None else self.running.new_buffer()
        found = tiles.forward(q, k, v, old, hidden, self.settings)
        self.running.set(hidden, self.layer, self.running.error if self.in_place else 0.0)
        return found

    def rounding(self) -> float:
        """The error of scores that are computed once."""
        return ROUNDINGS * torch.finfo(self.running.dtype).eps * float(self.size)

    def error_below(self) -> float:
        """The error of H_{n-1} after one more step backwards."""
        smallest = min(abs(value) for value in numbers(self.settings.keep))
        return float("inf") if smallest == 0.0 else (self.running.error + self.rounding()) / smallest

    def gradient_buffer(self, gradient: Tensor | None) -> Tensor:
        """Memory for the gradient of H_{n-1}: that of H_n, where it is the one this pass has made itself."""
        assert self.before is not None
        mine = self.running.gradient() if self.running.gradient is not None else None
        if gradient is not None and gradient is mine and self.in_place:
            return gradient
        return self.before[0].new_buffer()


class ReversibleLayer(torch.autograd.Function):
    """One layer under autograd: the gradient of H_n comes along the edge, H_n itself lies in the running buffer."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        edge: Tensor | None,
        keep: Coefficient,
        gain: Coefficient,
        attn_mask: Tensor | None,
        step: LayerStep,
    ) -> tuple[Tensor, Tensor]:
        out, logsumexp = step.forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, logsumexp, attn_mask)  # the mask too, so that a change is noticed
        ctx.set_materialize_grads(False)
        ctx.step = step
        return out, step.new_edge(q)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_hidden: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_order()
        step: LayerStep = ctx.step
        q, k, v, out, logsumexp, mask = ctx.saved_tensors
        _, _, _, needs_edge, needs_keep, needs_gain, needs_mask, _ = ctx.needs_input_grad
        running = step.running
        running.backwards = True
        if not running.holds(step.layer):
            running.set(None, None)  # first, so that its memory can be used again
            running.set(running.scores(step.layer, step.terms), step.layer, step.rounding())
        hidden, error, old = running.buffer, step.error_below(), None
        assert hidden is not None
        reverse = step.in_place and error <= LIMIT
        if needs_keep and not reverse and step.before is not None:
            old = step.before[0].scores(step.layer - 1, step.before[1])
        grad_old = step.gradient_buffer(grad_hidden) if needs_edge else None
        grad_mask = torch.zeros_like(mask) if needs_mask and mask is not None else None
        found = tiles.backward(
            torch.zeros_like(out) if grad_out is None else grad_out,
            grad_hidden,
            q,
            k,
            v,
            out,
            hidden,
            logsumexp,
            grad_old=grad_old,
            grad_mask=grad_mask,
            settings=step.settings,
            old=old,
            reverse=reverse,
        )
        if reverse:
            running.set(hidden, step.layer - 1, error)
        elif step.in_place:
            running.set(old, None if old is None else step.layer - 1, step.rounding())
        else:
            running.set(None, None)
        if grad_old is not None and step.before is not None:
            step.before[0].gradient = weakref.ref(grad_old)
        dkeep = found.keep.sum(dim=0) if needs_keep else None
        dgain = found.gain.sum(dim=0) if needs_gain else None
        return found.q, found.k, found.v, grad_old, dkeep, dgain, grad_mask, None
