"""Shapes and dtypes of what the compiled operators return, for tracing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _carried_forward(
    q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, hidden: Tensor, **settings: Any
) -> tuple[Tensor, Tensor]:
    return _output(q, v)


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
    old: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dkeep, dgain = (q.new_empty(q.shape[:2], dtype=torch.float32) for _ in range(2))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dkeep, dgain


def _stacked_forward(qs: list[Tensor], ks: list[Tensor], v: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    return _output(qs[0], v)


def _stacked_backward(
    grad_out: Tensor,
    qs: list[Tensor],
    ks: list[Tensor],
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    **settings: Any,
) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
    dweights = v.new_empty((len(qs), *qs[0].shape[:2]), dtype=torch.float32)
    return torch.empty_like(v), [torch.empty_like(q) for q in qs], [torch.empty_like(k) for k in ks], dweights


def _output(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The output (B, H, Q, Dv), stored as (B, Q, H, Dv), and the log-sum-exp of each row (B, H, Q)."""
    batch, heads, queries, _ = q.shape
    out = q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    return out, q.new_empty(batch, heads, queries, dtype=torch.float32)


def describe() -> None:
    """Register the fakes; the operators must be loaded."""
    for fake in (_carried_forward, _carried_backward, _stacked_forward, _stacked_backward):
        torch.library.register_fake(f"uncollapse_native::{fake.__name__[1:]}", fake)
