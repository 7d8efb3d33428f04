"""The backend `carried`: exact and fast, one score matrix handed from layer to layer.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _carried_tiles as tiles
from . import _compiled as compiled
from . import _native as native
from ._carried_tiles import CarriedStep
from ._dropout import draw_seed
from ._pool import POOL
from ._rows import MaskDropout, mask_future, refuse_second_order
from ._tiling import ScoreLayout
from .state import HiddenState

OVERWRITTEN = (
    "the scores of this state are gone: the backward pass has written their gradient over them; "
    "read scores() or take clone() before backward."
)
CONSUMED = (
    "this state was consumed: with gradients off the next layer writes its scores over it; "
    "hand on state.clone() to keep it."
)
SECOND_BACKWARD = (
    "backward through this attention layer a second time is not possible: the first one wrote gradients over its "
    "scores, also with retain_graph=True; add up the losses and call backward once, or use backend='reference'."
)


class BufferStatus:
    """Why the memory of a state can no longer be read, shared by the state and its autograd node."""

    __slots__ = ("invalid_reason",)

    def __init__(self) -> None:
        self.invalid_reason: str | None = None


class CarriedState(HiddenState):
    """H_n in one flat buffer, strip after strip.

    `scores()` is a copy and differentiable. After a causal layer the scores of later keys, which are never computed,
    are -inf in it. With gradients off, the layer that goes on from a state writes over it; reading it again raises.
    """

    backend = "carried"

    def __init__(self, layer: int, like: HiddenState | Tensor, keys: int, hidden: Tensor, causal: bool) -> None:
        super().__init__(layer, (*like.shape[:3], keys), hidden.dtype, hidden.device)
        self.hidden = hidden  # flat
        self.causal = causal
        self.saved = False  # an autograd node needs the memory
        self.status = BufferStatus()

    @property
    def layout(self) -> ScoreLayout:
        return ScoreLayout(self.shape[2], self.shape[3], self.causal)

    def scores(self) -> Tensor:
        return self.rows(0, self.shape[2])

    def rows(self, start: int, stop: int) -> Tensor:
        hidden = self.readable()
        batch, heads, queries, keys = self.shape
        if not self.causal:
            return hidden.view(batch, heads, queries, keys)[:, :, start:stop].clone()
        first, last, _ = slice(start, stop).indices(queries)
        full = hidden.new_full((batch * heads, max(last - first, 0), keys), float("-inf"))
        for strip, part in zip(self.layout.strips(), self.layout.views(hidden, batch * heads), strict=True):
            top, bottom = max(strip.start, first), min(strip.stop, last)
            if top < bottom:
                part = part.clone()
                mask_future(part, strip)  # here, so that no gradient reaches what is never computed
                part = part[:, top - strip.start : bottom - strip.start]
                full[:, top - first : bottom - first, : strip.width] = part
        return full.view(batch, heads, -1, keys)

    def clone(self) -> CarriedState:
        return CarriedState(self.layer, self, self.shape[3], self.readable().clone(), self.causal)

    def readable(self) -> Tensor:
        """The buffer, if it still holds H_n."""
        if self.status.invalid_reason is not None:
            raise RuntimeError(self.status.invalid_reason)
        return self.hidden


def carried_attention(
    q: Tensor,  # (B, H, Q, D)
    k: Tensor,  # (B, G, K, D)
    v: Tensor,  # (B, G, K, Dv)
    state: CarriedState | None,
    *,
    keep: float,
    take: float,
    scale: float,
    attn_mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
) -> tuple[Tensor, CarriedState]:
    """One layer: H_n = keep H_{n-1} + take S_n, out = softmax(H_n) V."""
    if state is not None and state.causal and not is_causal:
        raise ValueError(
            "the state comes from a causal layer, which has no scores of later keys; "
            "go on with is_causal=True, or call the causal layers with an attn_mask instead."
        )
    old = None if state is None or keep == 0.0 else state.readable()
    keys, layer = k.shape[2], 1 if state is None else state.layer + 1
    in_cpp = native.serves(q, attn_mask)
    if torch.compiler.is_compiling():
        old_causal = is_causal if state is None else state.causal
        out, hidden = compiled.carried(
            q, k, v, old, attn_mask, keep, take * scale, is_causal, old_causal, dropout_p, in_cpp
        )
        return out, CarriedState(layer, q, keys, hidden, is_causal)
    layout = ScoreLayout(q.shape[2], keys, is_causal)
    mask_dropout = MaskDropout((*q.shape[:3], keys), attn_mask, is_causal, dropout_p, draw_seed(dropout_p))
    step = CarriedStep(keep, take * scale, layout, layout if state is None else state.layout, mask_dropout, in_cpp)
    if torch.is_grad_enabled() and _needs_gradient(q, k, v, old, attn_mask):
        out, hidden, status = _differentiable(q, k, v, old, attn_mask, step)
        new = CarriedState(layer, q, keys, hidden, is_causal)
        new.saved, new.status = True, status
        return out, new
    if state is not None and old is not None and _consumable(state, layout):
        hidden = state.hidden
        state.status.invalid_reason = CONSUMED
    else:
        hidden = step.new_buffer(q)
    out, _ = tiles.forward(q, k, v, old, hidden, step)
    return out, CarriedState(layer, q, keys, hidden, is_causal)


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return any(t is not None and t.requires_grad for t in tensors)


def _consumable(state: CarriedState, layout: ScoreLayout) -> bool:
    if state.saved or torch.is_grad_enabled() or state.hidden.requires_grad or state.layout != layout:
        return False
    return torch.is_inference_mode_enabled() or not state.hidden.is_inference()


def _differentiable(
    q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, attn_mask: Tensor | None, step: CarriedStep
) -> tuple[Tensor, Tensor, BufferStatus]:
    status = BufferStatus()
    out, hidden = CarriedLayer.apply(q, k, v, old, attn_mask, step, status)  # type: ignore[no-untyped-call]
    return out, hidden, status


class CarriedLayer(torch.autograd.Function):
    """One layer under autograd; its gradient of H_n comes from its own softmax and from the layer above."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        old: Tensor | None,
        attn_mask: Tensor | None,
        step: CarriedStep,
        status: BufferStatus,
    ) -> tuple[Tensor, Tensor]:
        hidden = step.new_buffer(q)
        out, logsumexp = tiles.forward(q, k, v, old, hidden, step)
        ctx.save_for_backward(q, k, v, out, hidden, logsumexp)
        ctx.set_materialize_grads(False)
        ctx.step, ctx.status = step, status
        return out, hidden

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_hidden: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_order()
        if ctx.status.invalid_reason is not None:
            raise RuntimeError(SECOND_BACKWARD)
        step: CarriedStep = ctx.step
        q, k, v, out, hidden, logsumexp = ctx.saved_tensors
        ctx.status.invalid_reason = OVERWRITTEN
        hidden = hidden.detach()
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        grad_old = None
        if ctx.needs_input_grad[3]:
            # H_n is not needed any more; the gradient of H_{n-1} goes over it.
            grad_old = hidden if step.old_layout == step.layout else _buffer_like(hidden, q, step.old_layout)
        mask = step.mask_dropout.attn_mask
        grad_mask = torch.zeros_like(mask) if mask is not None and ctx.needs_input_grad[4] else None
        dq, dk, dv = tiles.backward(grad_out, grad_hidden, q, k, v, out, hidden, logsumexp, grad_old, grad_mask, step)
        return dq, dk, dv, grad_old, grad_mask, None, None


def _buffer_like(hidden: Tensor, q: Tensor, layout: ScoreLayout) -> Tensor:
    return POOL.take(q.shape[0] * q.shape[1] * layout.per_head, hidden.dtype, hidden.device)
