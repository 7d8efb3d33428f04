"""Checks of the arguments that every form of attention shares: those of scaled_dot_product_attention."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast_dtype_of(device_type: str) -> torch.dtype | None:
    """The dtype of the autocast region this runs in, if any."""
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def check_tensors(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> None:
    """Raise unless q, k and v fit together."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} must have four dimensions (batch, heads, tokens, size), got {_shape(tensor)}.")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}.")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise ValueError(
                f"q, k and v must share dtype and device, got {q.dtype} on {q.device} for q "
                f"and {tensor.dtype} on {tensor.device} for {name}."
            )
    if q.shape[-1] < 1 or v.shape[-1] < 1:
        raise ValueError(f"head sizes must be at least 1, got {q.shape[-1]} of q and {v.shape[-1]} of v.")
    if k.shape[-1] != q.shape[-1] or k.shape[0] != q.shape[0]:
        raise ValueError(f"k must have the batch and head size of q, got q {_shape(q)} and k {_shape(k)}.")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v must have the batch, heads and tokens of k, got k {_shape(k)} and v {_shape(v)}.")
    heads, groups = q.shape[1], k.shape[1]
    if heads != groups and not enable_gqa:
        raise ValueError(f"q has {heads} heads and k has {groups}; pass enable_gqa=True for grouped heads.")
    if groups == 0 or heads % groups:
        raise ValueError(f"the {heads} query heads must be a multiple of the {groups} key/value heads.")


def check_mask(q: Tensor, k: Tensor, attn_mask: Tensor | None, is_causal: bool) -> None:
    """Raise unless a mask fits the scores of q and k."""
    queries, keys = q.shape[2], k.shape[2]
    if is_causal and queries != keys:
        raise ValueError(
            f"is_causal=True needs as many queries as keys, got {queries} and {keys}; "
            "pass the rows you mean as attn_mask instead."
        )
    if attn_mask is None:
        return
    if is_causal:
        raise ValueError("attn_mask and is_causal=True cannot go together; put the causal part into attn_mask.")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise ValueError(f"attn_mask must be bool or floating point, got {attn_mask.dtype}.")
    full = (*q.shape[:3], keys)
    try:
        attn_mask.expand(full)
    except RuntimeError:
        raise ValueError(f"attn_mask of shape {_shape(attn_mask)} does not broadcast to {full} (B, H, Q, K).") from None


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
