"""Attention with a soft cap on its scores and a sink in its softmax, one layer at a time.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.

A sink needs no tiles of its own: with L = log sum_j exp(S_j) and L' = log(exp(sink) + exp(L)), its output is
exp(L - L') that of plain attention, and the backward pass of plain attention is right if it is given the output and the
log-sum-exp with the sink, because the sink has no value.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn import functional

from . import _stacked_tiles as tiles
from ._arguments import autocast_dtype_of, check_mask, check_tensors
from ._dropout import draw_seed_tensor, seed_value
from ._engine import tile_engine
from ._stacked_tiles import StackedSettings
from ._strips import SoftmaxSettings, full_precision
from .reference import masked
from .state import score_dtype


def capped_attention(
    q: Tensor,  # (B, H, Q, D)
    k: Tensor,  # (B, G, K, D)
    v: Tensor,  # (B, G, K, Dv)
    *,
    cap: float | None = None,
    sink: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention whose scores are capped softly, with a sink that takes part in the softmax and has no value.

        S = cap tanh(scale Q K^T / cap),    out_i = sum_j exp(S_ij) V_j / (exp(sink) + sum_j exp(S_ij))

    The arguments that `torch.nn.functional.scaled_dot_product_attention` has mean the same here. On CPUs it runs in C++
    tiles, where these serve; otherwise in plain torch, which makes the scores as a whole.

    Args:
        q: queries (B, H, Q, D).
        k: keys (B, G, K, D); G = H, or with `enable_gqa` a divisor of H.
        v: values (B, G, K, Dv).
        cap: the bound of the scores, a positive number; None for no cap.
        sink: one logit for each query head (H,), which gets its gradient; None for no sink. A sink of 0 is "softmax
            off by one".
        attn_mask: broadcastable to (B, H, Q, K). Bool: True may be seen. Float: added to the capped scores.
        is_causal: query i sees keys 1 .. i; needs Q = K and no `attn_mask`.
        scale: of Q K^T, 1/sqrt(D) by default.
        dropout_p: probability with which an attention weight is dropped.
        enable_gqa: allow fewer key/value heads than query heads.

    Returns:
        The output (B, H, Q, Dv). A query that sees no key gives zeros.

    >>> import torch
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4)
    >>> out = capped_attention(q, k, v, cap=30.0, sink=torch.zeros(2), is_causal=True)
    >>> out.shape
    torch.Size([1, 2, 5, 4])
    """
    autocast_dtype = autocast_dtype_of(q.device.type)
    if autocast_dtype is not None:  # as SDPA does
        q, k, v = (t if t.dtype == torch.float64 else t.to(autocast_dtype) for t in (q, k, v))
    check_tensors(q, k, v, enable_gqa)
    check_mask(q, k, attn_mask, is_causal)
    if cap is not None and not 0.0 < cap < math.inf:
        raise ValueError(f"cap must be a positive number or None, got {cap}.")
    if sink is not None and sink.shape != (q.shape[1],):
        raise ValueError(f"sink must be one number for each of the {q.shape[1]} heads, got {tuple(sink.shape)}.")
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    with nullcontext() if autocast_dtype is None else full_precision(q):
        if tile_engine(q, attn_mask, v) == "cpp":
            seed = draw_seed_tensor(dropout_p)
            settings: dict[str, Any] = {"cap": cap or 0.0, "scale": scale}
            out: Tensor
            out, _ = capped_forward(
                q, k, v, sink, attn_mask, seed, is_causal=is_causal, dropout_p=dropout_p, **settings
            )
            return out
        return plain_capped_attention(
            q, k, v, cap=cap, sink=sink, attn_mask=attn_mask, is_causal=is_causal, scale=scale, dropout_p=dropout_p
        )


def plain_capped_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cap: float | None,
    sink: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
) -> Tensor:
    """The definition, written to be read."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))  # G -> H heads
    wide = score_dtype(q.dtype)
    scores = scale * q.to(wide) @ k.to(wide).mT  # (B, H, Q, K)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = masked(scores, attn_mask, is_causal)
    column = torch.full_like(scores[..., :1], float("-inf"))
    if sink is not None:
        column = sink.to(wide).view(-1, 1, 1).expand_as(column)
    blind = (scores == float("-inf")).all(dim=-1, keepdim=True)  # rows that see no key: zeros, and no gradient
    weights = torch.cat((scores, column), dim=-1).masked_fill(blind, 0.0).softmax(dim=-1)[..., :-1]
    weights = functional.dropout(weights.masked_fill(blind, 0.0), dropout_p)
    return (weights @ v.to(wide)).to(v.dtype)


@custom_op("uncollapse::capped_forward", mutates_args=())
def capped_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    cap: float,  # 0 for none
    scale: float,
    is_causal: bool,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each row (B, H, Q), sink included, by the C++ tiles of one layer."""
    settings = _settings(q, v, attn_mask, seed, cap, scale, is_causal, dropout_p)
    out, logsumexp = tiles.forward([q], [k], v, settings)
    if sink is None:
        return out, logsumexp
    own = sink.to(logsumexp.dtype).view(-1, 1)
    share = torch.sigmoid(logsumexp - own).unsqueeze(-1)  # exp(L - L'), of what goes to the keys
    return (out * share).to(v.dtype), torch.logaddexp(logsumexp, own)  # +inf where no key is seen


@capped_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, attn_mask: Tensor | None, seed: Tensor | None, **_: Any
) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _size = q.shape
    out = v.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    return out, q.new_empty(batch, heads, queries, dtype=score_dtype(q.dtype))


@custom_op("uncollapse::capped_backward", mutates_args=())
def capped_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    *,
    cap: float,
    scale: float,
    is_causal: bool,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; `out` and `logsumexp` include the sink."""
    settings = _settings(q, v, attn_mask, seed, cap, scale, is_causal, dropout_p)
    (dq,), (dk,), dv, _ = tiles.backward(grad_out, [q], [k], v, out, logsumexp, grad_mask=None, settings=settings)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@capped_backward.register_fake
def _(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _settings(
    q: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    seed: Tensor | None,
    cap: float,
    scale: float,
    is_causal: bool,
    dropout_p: float,
) -> StackedSettings:
    softmax = SoftmaxSettings((*q.shape[:3], v.shape[2]), attn_mask, is_causal, dropout_p, seed_value(seed))
    return StackedSettings((scale,), softmax, "cpp", cap)


def _save(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]
) -> None:
    q, k, v, sink, attn_mask, seed = inputs
    ctx.save_for_backward(q, k, v, *output, sink, attn_mask, seed)
    ctx.settings = keyword_only_inputs


def _gradients(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, out, logsumexp, sink, attn_mask, seed = ctx.saved_tensors
    dq, dk, dv = capped_backward(grad_out, q, k, v, out, logsumexp, attn_mask, seed, **ctx.settings)
    dsink = None
    if sink is not None and ctx.needs_input_grad[3]:  # its weight in a row, times what the row would lose to it
        weight = torch.exp(sink.to(logsumexp.dtype).view(-1, 1) - logsumexp)  # (B, H, Q)
        dsink = -(weight * (grad_out * out).sum(dim=-1, dtype=logsumexp.dtype)).sum(dim=(0, 2)).to(sink.dtype)
    return dq, dk, dv, dsink, None, None


capped_forward.register_autograd(_gradients, setup_context=_save)
