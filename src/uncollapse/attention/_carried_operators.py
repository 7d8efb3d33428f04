"""One layer of `carried` as a custom operator, so that torch.compile traces it without a graph break.

The operators are functional: every buffer is new and no input is written. Outside torch.compile the backend uses its
own autograd function, which reuses score memory. Tensors are positional arguments, settings keyword-only ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.library import custom_op

from . import _carried_tiles as tiles
from ._carried_tiles import CarriedSettings
from ._dropout import seed_value
from ._strips import SoftmaxSettings
from ._tiling import ScoreLayout
from .state import Engine, score_dtype


@custom_op("uncollapse::carried_forward", mutates_args=())
def carried_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    old: Tensor | None,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    keep: float,
    gain: float,
    old_causal: bool,
    is_causal: bool,
    dropout_p: float,
    engine: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the flat buffer of H_n and the log-sum-exp of each row."""
    softmax = SoftmaxSettings((*q.shape[:3], v.shape[2]), attn_mask, is_causal, dropout_p, seed_value(seed))
    settings = CarriedSettings(keep, gain, old_causal, softmax, cast("Engine", engine))
    hidden = settings.new_buffer(settings.layout, q)
    out, logsumexp = tiles.forward(q, k, v, old, hidden, settings)
    return out.contiguous(), hidden, logsumexp


@carried_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    old: Tensor | None,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    is_causal: bool,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries, _size = q.shape
    count = batch * heads * ScoreLayout(queries, k.shape[2], is_causal).per_head
    wide = score_dtype(q.dtype)
    out = q.new_empty(batch, heads, queries, v.shape[3])
    return out, q.new_empty(count, dtype=wide), q.new_empty(batch, heads, queries, dtype=wide)


@custom_op("uncollapse::carried_backward", mutates_args=())
def carried_backward(
    grad_out: Tensor,
    grad_hidden: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    hidden: Tensor,
    logsumexp: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    keep: float,
    gain: float,
    old_causal: bool,
    is_causal: bool,
    dropout_p: float,
    engine: str,
    needs_old: bool,
    needs_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, the old scores and the mask; the last two are empty where they are not needed."""
    softmax = SoftmaxSettings((*q.shape[:3], v.shape[2]), attn_mask, is_causal, dropout_p, seed_value(seed))
    settings = CarriedSettings(keep, gain, old_causal, softmax, cast("Engine", engine))
    grad_old = settings.new_buffer(settings.old_layout, q) if needs_old else None
    grad_mask = torch.zeros_like(attn_mask) if needs_mask and attn_mask is not None else None
    dq, dk, dv = tiles.backward(
        grad_out,
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
    )
    return (
        dq.contiguous(),
        dk.contiguous(),
        dv.contiguous(),
        hidden.new_empty(0) if grad_old is None else grad_old,
        hidden.new_empty(0) if grad_mask is None else grad_mask,
    )


@carried_backward.register_fake
def _(
    grad_out: Tensor,
    grad_hidden: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    hidden: Tensor,
    logsumexp: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    old_causal: bool,
    needs_old: bool,
    needs_mask: bool,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    count = q.shape[0] * q.shape[1] * ScoreLayout(q.shape[2], k.shape[2], old_causal).per_head
    grad_old = hidden.new_empty(count) if needs_old else hidden.new_empty(0)
    grad_mask = torch.empty_like(attn_mask) if needs_mask and attn_mask is not None else hidden.new_empty(0)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), grad_old, grad_mask


class _CarriedInputs(NamedTuple):
    """One entry per positional argument of `carried_forward`: the input, whether it needs a gradient, its gradient."""

    q: Any
    k: Any
    v: Any
    old: Any
    attn_mask: Any
    seed: Any = None


def _save(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    given = _CarriedInputs(*inputs)
    ctx.save_for_backward(given.q, given.k, given.v, *output, given.attn_mask, given.seed)
    ctx.set_materialize_grads(False)
    ctx.settings = keyword_only_inputs


def _gradients(ctx: Any, grad_out: Tensor | None, grad_hidden: Tensor | None, _: Tensor | None) -> Any:
    q, k, v, out, hidden, logsumexp, attn_mask, seed = ctx.saved_tensors
    needs = _CarriedInputs(*ctx.needs_input_grad)
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    dq, dk, dv, grad_old, grad_mask = carried_backward(
        grad_out,
        grad_hidden,
        q,
        k,
        v,
        out,
        hidden,
        logsumexp,
        attn_mask,
        seed,
        **ctx.settings,
        needs_old=needs.old,
        needs_mask=needs.attn_mask,
    )
    return _CarriedInputs(
        q=dq, k=dk, v=dv, old=grad_old if needs.old else None, attn_mask=grad_mask if needs.attn_mask else None
    )


carried_forward.register_autograd(_gradients, setup_context=_save)
