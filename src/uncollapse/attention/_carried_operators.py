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
from ._storage import buffer_dtype
from ._strips import SoftmaxSettings
from ._tiling import ScoreLayout
from .state import Engine, score_dtype


@custom_op("uncollapse::carried_forward", mutates_args=())
def carried_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    old: Tensor | None,
    keep: Tensor,
    gain: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    old_causal: bool,
    is_causal: bool,
    dropout_p: float,
    stored: torch.dtype,
    engine: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the flat buffer of H_n and the log-sum-exp of each row; `keep` and `gain` are (H,)."""
    softmax = SoftmaxSettings((*q.shape[:3], v.shape[2]), attn_mask, is_causal, dropout_p, seed_value(seed))
    settings = CarriedSettings(keep, gain, old_causal, softmax, cast("Engine", engine), stored)
    hidden = settings.new_buffer(settings.layout, q)
    out, logsumexp = tiles.forward(q, k, v, old, hidden, settings)
    return out.contiguous(), hidden, logsumexp


@carried_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    old: Tensor | None,
    keep: Tensor,
    gain: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    is_causal: bool,
    stored: torch.dtype,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries, _size = q.shape
    count = batch * heads * ScoreLayout(queries, k.shape[2], is_causal).per_head
    out = q.new_empty(batch, heads, queries, v.shape[3])
    rows = q.new_empty(batch, heads, queries, dtype=score_dtype(q.dtype))
    return out, q.new_empty(count, dtype=buffer_dtype(stored)), rows


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
    old: Tensor | None,
    keep: Tensor,
    gain: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    old_causal: bool,
    is_causal: bool,
    dropout_p: float,
    stored: torch.dtype,
    engine: str,
    needs_old: bool,
    needs_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, keep, gain, the old scores and the mask; the last two are empty where not needed."""
    softmax = SoftmaxSettings((*q.shape[:3], v.shape[2]), attn_mask, is_causal, dropout_p, seed_value(seed))
    settings = CarriedSettings(keep, gain, old_causal, softmax, cast("Engine", engine), stored)
    grad_old = settings.new_buffer(settings.old_layout, q) if needs_old else None
    grad_mask = torch.zeros_like(attn_mask) if needs_mask and attn_mask is not None else None
    found = tiles.backward(
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
        old=old,
    )
    return (
        found.q.contiguous(),
        found.k.contiguous(),
        found.v.contiguous(),
        found.keep.sum(dim=0),
        found.gain.sum(dim=0),
        hidden.new_empty(0) if grad_old is None else grad_old,
        q.new_empty(0) if grad_mask is None else grad_mask,
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
    old: Tensor | None,
    keep: Tensor,
    gain: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    old_causal: bool,
    needs_old: bool,
    needs_mask: bool,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    count = q.shape[0] * q.shape[1] * ScoreLayout(q.shape[2], k.shape[2], old_causal).per_head
    grad_old = hidden.new_empty(count) if needs_old else hidden.new_empty(0)
    grad_mask = torch.empty_like(attn_mask) if needs_mask and attn_mask is not None else q.new_empty(0)
    coefficients = torch.empty_like(keep), torch.empty_like(gain)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), *coefficients, grad_old, grad_mask


class _CarriedInputs(NamedTuple):
    """One entry per positional argument of `carried_forward`: the input, whether it needs a gradient, its gradient."""

    q: Any
    k: Any
    v: Any
    old: Any
    keep: Any
    gain: Any
    attn_mask: Any
    seed: Any = None


def _save(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    given = _CarriedInputs(*inputs)
    old = given.old if given.keep.requires_grad else None  # only the gradient of keep needs it
    ctx.save_for_backward(given.q, given.k, given.v, *output, old, *given[4:])
    ctx.set_materialize_grads(False)
    ctx.settings = keyword_only_inputs


def _gradients(ctx: Any, grad_out: Tensor | None, grad_hidden: Tensor | None, _: Tensor | None) -> Any:
    q, k, v, out, *saved = ctx.saved_tensors
    needs = _CarriedInputs(*ctx.needs_input_grad)
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    dq, dk, dv, dkeep, dgain, grad_old, grad_mask = carried_backward(
        grad_out,
        grad_hidden,
        q,
        k,
        v,
        out,
        *saved,
        **ctx.settings,
        needs_old=needs.old,
        needs_mask=needs.attn_mask,
    )
    return _CarriedInputs(
        q=dq,
        k=dk,
        v=dv,
        old=grad_old if needs.old else None,
        keep=dkeep if needs.keep else None,
        gain=dgain if needs.gain else None,
        attn_mask=grad_mask if needs.attn_mask else None,
    )


carried_forward.register_autograd(_gradients, setup_context=_save)
