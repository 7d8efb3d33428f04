"""Shapes and dtypes of what the compiled operators return, for tracing."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.register_fake("uncollapse_native::carried_forward")
def _carried_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    old: Tensor | None,
    hidden: Tensor,
    mask: Tensor | None,
    keep: float,
    gain: float,
    causal: bool,
    old_causal: bool,
    dropout_p: float,
    seed: int,
    tile: int,
) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = q.shape
    out = q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    return out, q.new_empty(batch, heads, queries, dtype=torch.float32)


@torch.library.register_fake("uncollapse_native::carried_backward")
def _carried_backward(
    grad_out: Tensor,
    grad_hidden: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    hidden: Tensor,
    logsumexp: Tensor,
    grad_old: Tensor | None,
    mask: Tensor | None,
    keep: float,
    gain: float,
    causal: bool,
    old_causal: bool,
    dropout_p: float,
    seed: int,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
