"""The coefficients of a layer's recursion: numbers, or tensors with one value for each head, which get gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from .state import score_dtype

Coefficient = float | Tensor  # a number for all heads, or one value for each head (H,)


def for_heads(name: str, value: Coefficient, q: Tensor) -> Coefficient:
    """A number as it is; a tensor as one value (H,) for each head of `q`, in the dtype of its scores."""
    if not isinstance(value, Tensor):
        return value
    heads = q.shape[1]
    if value.dim() > 1 or value.numel() not in (1, heads):
        raise ValueError(
            f"{name} must be a number, or a tensor of shape () or ({heads},), one value for each head; "
            f"got {tuple(value.shape)}."
        )
    if value.device != q.device:
        raise ValueError(f"{name} is on {value.device} and q on {q.device}; move it there.")
    return value.to(score_dtype(q.dtype)).expand(heads)


def values_of(value: Coefficient) -> Coefficient:
    """The value without its graph."""
    return value.detach() if isinstance(value, Tensor) else value


def numbers(value: Coefficient) -> list[float]:
    """The value, or those of the heads, as numbers."""
    return value.tolist() if isinstance(value, Tensor) else [value]


def as_tensor(value: Coefficient, q: Tensor) -> Tensor:
    """One value (H,) for each head, also of a number."""
    if isinstance(value, Tensor):
        return value
    return torch.full((q.shape[1],), value, dtype=score_dtype(q.dtype), device=q.device)


def scaled(tensor: Tensor, factor: Coefficient) -> Tensor:
    """A tensor (B * H, ...) times the coefficient of its head."""
    return tensor * column(factor, tensor.shape[0])


def column(value: Coefficient, count: int) -> Coefficient:
    """A coefficient that broadcasts over (B * H, rows, columns), B * H = `count`."""
    if not isinstance(value, Tensor):
        return value
    return value.repeat(count // value.shape[0]).view(count, 1, 1)
