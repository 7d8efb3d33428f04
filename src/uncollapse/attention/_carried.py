"""The backend `carried`: exact and fast, one score matrix handed from layer to layer.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _carried_operators as operators
from . import _carried_tiles as tiles
from ._carried_tiles import CarriedSettings
from ._coefficients import Coefficient, as_tensor, values_of
from ._dropout import draw_seed, draw_seed_tensor
from ._engine import tile_engine
from ._storage import WideScores, as_scores
from ._strips import SoftmaxSettings, mask_future, refuse_second_order
from ._tiling import ScoreLayout
from .state import Engine, HiddenState

OVERWRITTEN = (
    "the scores of this state are gone: the backward pass has written their gradient over them; "
    "read scores() or take clone() before backward."
)
CONSUMED = (
    "this state was consumed: with gradients off the next layer writes its scores over it; "
    "pass on state.clone() to keep it."
)
SECOND_BACKWARD = (
    "backward through this attention layer a second time is not possible: the first one wrote gradients over its "
    "scores, also with retain_graph=True; add up the losses and call backward once, or use backend='reference'."
)


class BufferStatus:
    """Whether a score buffer still holds H_n, shared by the state and the autograd node that may overwrite it."""

    __slots__ = ("invalid_reason",)

    def __init__(self) -> None:
        self.invalid_reason: str | None = None


class CarriedState(HiddenState):
    """H_n in one flat buffer, strip after strip.

    `scores()` is a copy and differentiable. After a causal layer the scores of later keys, which are never computed,
    are -inf in it. With gradients off, the next layer writes over the state it continues from; reading it again raises.
    """

    backend = "carried"

    def __init__(
        self,
        layer: int,
        shape: tuple[int, int, int, int],
        hidden: Tensor,
        *,
        causal: bool,
        engine: Engine,
        status: BufferStatus | None = None,
    ) -> None:
        super().__init__(layer, shape, as_scores(hidden).dtype, hidden.device, engine)
        self.hidden = hidden  # flat; see _storage.py for its dtype
        self.causal = causal
        self.saved = status is not None  # an autograd node needs the memory
        self.status = BufferStatus() if status is None else status

    @property
    def layout(self) -> ScoreLayout:
        return ScoreLayout(self.shape[2], self.shape[3], self.causal)

    def scores(self) -> Tensor:
        return self.rows(0, self.shape[2])

    def rows(self, start: int, stop: int) -> Tensor:
        hidden = self.readable()
        if self.dtype == torch.float16:
            hidden = WideScores.apply(hidden)  # type: ignore[no-untyped-call]
        return rows_of(hidden, self.shape, self.causal, start, stop)

    def clone(self) -> CarriedState:
        return CarriedState(self.layer, self.shape, self.readable().clone(), causal=self.causal, engine=self.engine)

    def readable(self) -> Tensor:
        """The buffer, if it still holds H_n."""
        if self.status.invalid_reason is not None:
            raise RuntimeError(self.status.invalid_reason)
        return self.hidden

    def consume(self, layout: ScoreLayout) -> Tensor | None:
        """The buffer for the next layer to write over, or None where something else may still read it."""
        if self.saved or torch.is_grad_enabled() or self.hidden.requires_grad or self.layout != layout:
            return None
        if self.hidden.is_inference() and not torch.is_inference_mode_enabled():
            return None
        self.status.invalid_reason = CONSUMED
        return self.hidden


def rows_of(hidden: Tensor, shape: tuple[int, int, int, int], causal: bool, start: int, stop: int) -> Tensor:
    """Rows start .. stop of the scores in a flat buffer: (B, H, stop - start, K); later keys are -inf if causal."""
    batch, heads, queries, keys = shape
    if not causal:
        return hidden.view(shape)[:, :, start:stop].clone()
    layout = ScoreLayout(queries, keys, causal)
    first, last, _ = slice(start, stop).indices(queries)
    full = hidden.new_full((batch * heads, max(last - first, 0), keys), float("-inf"))
    for strip, part in zip(layout.strips(), layout.views(hidden, batch * heads), strict=True):
        top, bottom = max(strip.start, first), min(strip.stop, last)
        if top < bottom:
            part = part.clone()
            mask_future(part, strip)  # here, so that no gradient reaches what is never computed
            part = part[:, top - strip.start : bottom - strip.start]
            full[:, top - first : bottom - first, : strip.width] = part
    return full.view(batch, heads, -1, keys)


def refuse_leaving_causality(was_causal: bool, is_causal: bool) -> None:
    """Raise if a layer sees keys that the layers before it did not."""
    if was_causal and not is_causal:
        raise ValueError(
            "the state comes from a causal layer, which has no scores of later keys; "
            "continue with is_causal=True, or call the causal layers with an attn_mask instead."
        )


def carried_attention(
    q: Tensor,  # (B, H, Q, D)
    k: Tensor,  # (B, G, K, D)
    v: Tensor,  # (B, G, K, Dv)
    state: CarriedState | None,
    *,
    keep: Coefficient,
    take: Coefficient,
    scale: float,
    stored: torch.dtype,
    attn_mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
) -> tuple[Tensor, CarriedState]:
    """One layer: H_n = keep H_{n-1} + take S_n, out = softmax(H_n) V."""
    old_causal = is_causal if state is None else state.causal
    refuse_leaving_causality(old_causal, is_causal)
    nothing_kept = not isinstance(keep, Tensor) and keep == 0.0
    old = None if state is None or nothing_kept else state.readable()
    engine, gain, status = tile_engine(q, attn_mask, v), take * scale, None
    if torch.compiler.is_compiling():
        out, hidden, _ = operators.carried_forward(
            q,
            k,
            v,
            old,
            as_tensor(keep, q),
            as_tensor(gain, q),
            attn_mask,
            draw_seed_tensor(dropout_p),
            old_causal=old_causal,
            is_causal=is_causal,
            dropout_p=dropout_p,
            stored=stored,
            engine=engine,
        )
    else:
        softmax = SoftmaxSettings((*q.shape[:3], k.shape[2]), attn_mask, is_causal, dropout_p, draw_seed(dropout_p))
        settings = CarriedSettings(values_of(keep), values_of(gain), old_causal, softmax, engine, stored)
        if needs_gradient(q, k, v, old, keep, gain, attn_mask):
            status = BufferStatus()
            out, hidden = CarriedLayer.apply(q, k, v, old, keep, gain, attn_mask, settings, status)  # type: ignore[no-untyped-call]
        else:
            consumed = None if state is None or old is None else state.consume(settings.layout)
            hidden = settings.new_buffer(settings.layout, q) if consumed is None else consumed
            out, _ = tiles.forward(q, k, v, old, hidden, settings)
    layer, shape = 1 if state is None else state.layer + 1, (*q.shape[:3], k.shape[2])
    return out, CarriedState(layer, shape, hidden, causal=is_causal, engine=engine, status=status)


def needs_gradient(*inputs: Any) -> bool:
    """Whether a layer with these inputs has a backward pass."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs)


class CarriedLayer(torch.autograd.Function):
    """One layer under autograd; its gradient of H_n comes from its own softmax and from the layer above."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        old: Tensor | None,
        keep: Coefficient,
        gain: Coefficient,
        attn_mask: Tensor | None,
        settings: CarriedSettings,
        status: BufferStatus,
    ) -> tuple[Tensor, Tensor]:
        hidden = settings.new_buffer(settings.layout, q)
        out, logsumexp = tiles.forward(q, k, v, old, hidden, settings)
        old = old if ctx.needs_input_grad[4] else None  # the layer below keeps it anyway; only a learned keep reads it
        ctx.save_for_backward(q, k, v, out, hidden, logsumexp, old, attn_mask)  # the mask: so that a change is noticed
        ctx.set_materialize_grads(False)
        ctx.settings, ctx.status = settings, status
        return out, hidden

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_hidden: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_order()
        if ctx.status.invalid_reason is not None:
            raise RuntimeError(SECOND_BACKWARD)
        ctx.status.invalid_reason = OVERWRITTEN
        settings: CarriedSettings = ctx.settings
        q, k, v, out, hidden, logsumexp, old, _ = ctx.saved_tensors
        _, _, _, needs_old, needs_keep, needs_gain, needs_mask, _, _ = ctx.needs_input_grad
        hidden = hidden.detach()
        grad_old = grad_mask = None
        if needs_old:
            # H_n is not needed any more; the gradient of H_{n-1} goes over it.
            same = settings.old_layout == settings.layout
            grad_old = hidden if same else settings.new_buffer(settings.old_layout, q)
        if needs_mask and settings.softmax.attn_mask is not None:
            grad_mask = torch.zeros_like(settings.softmax.attn_mask)
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
            settings=settings,
            old=old,
        )
        dkeep = found.keep.sum(dim=0) if needs_keep else None
        dgain = found.gain.sum(dim=0) if needs_gain else None
        return found.q, found.k, found.v, grad_old, dkeep, dgain, grad_mask, None, None
