"""The layers of `carried` and `stacked` as operators that torch.compile takes as they are.

They are functional: every buffer is new, nothing is written over. Outside torch.compile the backends use their own
autograd functions, which reuse score memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from . import _carried_tiles as carried_tiles
from . import _stacked_tiles as stacked_tiles
from ._carried_tiles import CarriedStep
from ._rows import MaskDropout
from ._stacked_tiles import StackedStep
from ._tiling import ScoreLayout
from .state import score_dtype


def carried(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    old: Tensor | None,
    attn_mask: Tensor | None,
    keep: float,
    gain: float,
    is_causal: bool,
    old_causal: bool,
    dropout_p: float,
    in_cpp: bool,
) -> tuple[Tensor, Tensor]:
    """One layer of `carried`: the output and the flat buffer of H_n."""
    seed = _seed_tensor(dropout_p)
    out, hidden, _ = carried_forward(
        q, k, v, old, attn_mask, seed, keep, gain, is_causal, old_causal, dropout_p, in_cpp
    )
    return out, hidden


def stacked(
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    attn_mask: Tensor | None,
    weights: Sequence[float],
    is_causal: bool,
    dropout_p: float,
    in_cpp: bool,
) -> Tensor:
    """One layer of `stacked`: the output."""
    seed = _seed_tensor(dropout_p)
    out: Tensor = stacked_forward(qs, ks, v, attn_mask, seed, weights, is_causal, dropout_p, in_cpp)[0]
    return out


def _seed_tensor(dropout_p: float) -> Tensor | None:
    return torch.randint(2**62, ()) if dropout_p > 0.0 else None


def _mask_dropout(
    q: Tensor, keys: int, mask: Tensor | None, seed: Tensor | None, causal: bool, dropout_p: float
) -> MaskDropout:
    return MaskDropout((*q.shape[:3], keys), mask, causal, dropout_p, 0 if seed is None else int(seed))


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


@custom_op("uncollapse::carried_forward", mutates_args=())
def carried_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    old: Tensor | None,
    mask: Tensor | None,
    seed: Tensor | None,
    keep: float,
    gain: float,
    causal: bool,
    old_causal: bool,
    dropout_p: float,
    in_cpp: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, scores and what is kept of each row."""
    step = _step(q, k, mask, seed, keep, gain, causal, old_causal, dropout_p, in_cpp)
    hidden = step.new_buffer(q)
    out, logsumexp = carried_tiles.forward(q, k, v, old, hidden, step)
    return out.contiguous(), hidden, logsumexp


def _step(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    keep: float,
    gain: float,
    causal: bool,
    old_causal: bool,
    dropout_p: float,
    in_cpp: bool,
) -> CarriedStep:
    queries, keys = q.shape[2], k.shape[2]
    mask_dropout = _mask_dropout(q, keys, mask, seed, causal, dropout_p)
    return CarriedStep(
        keep, gain, ScoreLayout(queries, keys, causal), ScoreLayout(queries, keys, old_causal), mask_dropout, in_cpp
    )


@carried_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    causal = rest[5]
    batch, heads, queries, _ = q.shape
    count = batch * heads * ScoreLayout(queries, k.shape[2], causal).per_head
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
    mask: Tensor | None,
    seed: Tensor | None,
    keep: float,
    gain: float,
    causal: bool,
    old_causal: bool,
    dropout_p: float,
    in_cpp: bool,
    needs_old: bool,
    needs_mask: bool,
) -> list[Tensor]:
    """Gradients of q, k, v, the old scores and the mask; the last two empty where not needed."""
    step = _step(q, k, mask, seed, keep, gain, causal, old_causal, dropout_p, in_cpp)
    grad_old = hidden.new_empty(q.shape[0] * q.shape[1] * step.old_layout.per_head) if needs_old else None
    grad_mask = torch.zeros_like(mask) if needs_mask and mask is not None else None
    dq, dk, dv = carried_tiles.backward(
        grad_out, grad_hidden, q, k, v, out, hidden, logsumexp, grad_old, grad_mask, step
    )
    return [
        *(t.contiguous() for t in (dq, dk, dv)),
        _nothing(hidden) if grad_old is None else grad_old,
        _nothing(hidden) if grad_mask is None else grad_mask,
    ]


@carried_backward.register_fake
def _(grad_out: Tensor, grad_hidden: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:
    _, hidden, _, mask, _, _, _, _, old_causal, _, _, needs_old, needs_mask = rest
    count = q.shape[0] * q.shape[1] * ScoreLayout(q.shape[2], k.shape[2], old_causal).per_head
    return [
        *(t.new_empty(t.shape) for t in (q, k, v)),
        hidden.new_empty(count) if needs_old else _nothing(hidden),
        torch.empty_like(mask) if needs_mask else _nothing(hidden),
    ]


def _keep_carried(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, _, mask, seed, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output, mask, seed)
    ctx.set_materialize_grads(False)


def _carried_gradients(ctx: Any, grad_out: Tensor | None, grad_hidden: Tensor | None, _: Tensor | None) -> Any:
    q, k, v, out, hidden, logsumexp, mask, seed = ctx.saved_tensors
    needs_old, needs_mask = ctx.needs_input_grad[3], ctx.needs_input_grad[4]
    dq, dk, dv, grad_old, grad_mask = carried_backward(
        torch.zeros_like(out) if grad_out is None else grad_out,
        grad_hidden,
        *(q, k, v, out, hidden, logsumexp, mask, seed),
        *ctx.settings,
        needs_old,
        needs_mask,
    )
    return (dq, dk, dv, grad_old if needs_old else None, grad_mask if needs_mask else None) + (None,) * 7


carried_forward.register_autograd(_carried_gradients, setup_context=_keep_carried)


@custom_op("uncollapse::stacked_forward", mutates_args=())
def stacked_forward(
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    weights: Sequence[float],
    causal: bool,
    dropout_p: float,
    in_cpp: bool,
) -> tuple[Tensor, Tensor]:
    """Output and what is kept of each row."""
    terms = StackedStep(tuple(weights), _mask_dropout(qs[0], v.shape[2], mask, seed, causal, dropout_p), in_cpp)
    out, logsumexp = stacked_tiles.forward(qs, ks, v, terms)
    return out.contiguous(), logsumexp


@stacked_forward.register_fake
def _(qs: Sequence[Tensor], ks: Sequence[Tensor], v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    rows = qs[0].shape[:3]
    return v.new_empty(*rows, v.shape[3]), v.new_empty(rows, dtype=score_dtype(v.dtype))


@custom_op("uncollapse::stacked_backward", mutates_args=())
def stacked_backward(
    grad_out: Tensor,
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    weights: Sequence[float],
    causal: bool,
    dropout_p: float,
    in_cpp: bool,
    needs_mask: bool,
) -> list[Tensor]:
    """Gradients of v, the mask (empty where not needed), all queries, all keys."""
    terms = StackedStep(tuple(weights), _mask_dropout(qs[0], v.shape[2], mask, seed, causal, dropout_p), in_cpp)
    grad_mask = torch.zeros_like(mask) if needs_mask and mask is not None else None
    dv, dqs, dks = stacked_tiles.backward(grad_out, qs, ks, v, out, logsumexp, grad_mask, terms)
    return [dv.contiguous(), _nothing(v) if grad_mask is None else grad_mask, *(t.contiguous() for t in (*dqs, *dks))]


@stacked_backward.register_fake
def _(grad_out: Tensor, qs: Sequence[Tensor], ks: Sequence[Tensor], v: Tensor, *rest: Any) -> list[Tensor]:
    mask, needs_mask = rest[2], rest[-1]
    grad_mask = torch.empty_like(mask) if needs_mask else _nothing(v)
    return [v.new_empty(v.shape), grad_mask, *(t.new_empty(t.shape) for t in (*qs, *ks))]


def _keep_stacked(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qs, ks, v, mask, seed, *ctx.settings = inputs
    ctx.save_for_backward(v, *output, mask, seed, *qs, *ks)


def _stacked_gradients(ctx: Any, grad_out: Tensor, _: Tensor) -> Any:
    v, out, logsumexp, mask, seed, *past = ctx.saved_tensors
    half = len(past) // 2
    needs_mask = ctx.needs_input_grad[3]
    dv, grad_mask, *rest = stacked_backward(
        grad_out, past[:half], past[half:], v, out, logsumexp, mask, seed, *ctx.settings, needs_mask
    )
    return (rest[:half], rest[half:], dv, grad_mask if needs_mask else None) + (None,) * 5


stacked_forward.register_autograd(_stacked_gradients, setup_context=_keep_stacked)
