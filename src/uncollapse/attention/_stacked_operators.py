"""One layer of `stacked` as a custom operator, so that torch.compile traces it without a graph break.

The operators are functional: every buffer is new and no input is written. Outside torch.compile the backend uses its
own autograd function. Tensors are positional arguments, settings keyword-only ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.library import custom_op

from . import _stacked_tiles as tiles
from ._dropout import seed_value
from ._stacked_tiles import StackedSettings
from ._strips import SoftmaxSettings
from .state import Engine, score_dtype


@custom_op("uncollapse::stacked_forward", mutates_args=())
def stacked_forward(
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    weights: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    is_causal: bool,
    dropout_p: float,
    engine: str,
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each row; `weights` is (L, H)."""
    softmax = SoftmaxSettings((*qs[0].shape[:3], v.shape[2]), attn_mask, is_causal, dropout_p, seed_value(seed))
    settings = StackedSettings(tuple(weights.unbind()), softmax, cast("Engine", engine))
    out, logsumexp = tiles.forward(qs, ks, v, settings)
    return out.contiguous(), logsumexp


@stacked_forward.register_fake
def _(
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    weights: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
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
    weights: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    is_causal: bool,
    dropout_p: float,
    engine: str,
    needs_mask: bool,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
    """Gradients of all queries, all keys, v, the weights and the mask; the last is empty where it is not needed."""
    softmax = SoftmaxSettings((*qs[0].shape[:3], v.shape[2]), attn_mask, is_causal, dropout_p, seed_value(seed))
    settings = StackedSettings(tuple(weights.unbind()), softmax, cast("Engine", engine))
    grad_mask = torch.zeros_like(attn_mask) if needs_mask and attn_mask is not None else None
    dqs, dks, dv, dweights = tiles.backward(grad_out, qs, ks, v, out, logsumexp, grad_mask=grad_mask, settings=settings)
    return (
        [_unshared(dq) for dq in dqs],
        [_unshared(dk) for dk in dks],
        dv.contiguous(),
        dweights.sum(dim=1),
        v.new_empty(0) if grad_mask is None else grad_mask,
    )


def _unshared(t: Tensor) -> Tensor:
    """A copy of a part of a larger tensor: what an operator returns may not share memory."""
    whole = t.untyped_storage().nbytes() == t.nbytes
    return t.contiguous() if whole else t.clone(memory_format=torch.contiguous_format)


@stacked_backward.register_fake
def _(
    grad_out: Tensor,
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    weights: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    needs_mask: bool,
    **_: Any,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
    grad_mask = torch.empty_like(attn_mask) if needs_mask and attn_mask is not None else v.new_empty(0)
    dqs, dks = [q.new_empty(q.shape) for q in qs], [k.new_empty(k.shape) for k in ks]
    return dqs, dks, v.new_empty(v.shape), torch.empty_like(weights), grad_mask


class _StackedInputs(NamedTuple):
    """One entry per positional argument of `stacked_forward`: the input, whether it needs a gradient, its gradient."""

    qs: Any
    ks: Any
    v: Any
    weights: Any
    attn_mask: Any
    seed: Any = None


def _save(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]
) -> None:
    given = _StackedInputs(*inputs)
    ctx.save_for_backward(given.v, *output, given.weights, given.attn_mask, given.seed, *given.qs, *given.ks)
    ctx.settings = keyword_only_inputs


def _gradients(ctx: Any, grad_out: Tensor, _: Tensor) -> Any:
    v, out, logsumexp, weights, attn_mask, seed, *terms = ctx.saved_tensors
    depth = len(terms) // 2
    needs = _StackedInputs(*ctx.needs_input_grad)
    dqs, dks, dv, dweights, grad_mask = stacked_backward(
        grad_out,
        terms[:depth],
        terms[depth:],
        v,
        out,
        logsumexp,
        weights,
        attn_mask,
        seed,
        **ctx.settings,
        needs_mask=needs.attn_mask,
    )
    return _StackedInputs(
        qs=dqs,
        ks=dks,
        v=dv,
        weights=dweights if needs.weights else None,
        attn_mask=grad_mask if needs.attn_mask else None,
    )


stacked_forward.register_autograd(_gradients, setup_context=_save)
