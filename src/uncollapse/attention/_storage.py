"""How scores lie in memory: in the dtype they are computed in, or in two bytes.

In two bytes H_n is float16, which saturates at 65504, and the gradient that goes over it later is bfloat16, whose range
is that of float32. Autograd asks a gradient to have the dtype of its tensor, so the buffer is a bfloat16 tensor, and
the bits of H_n in it are those of float16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .state import score_dtype

LARGEST = torch.finfo(torch.float16).max  # 65504
NAMES = {"float32": torch.float32, "float16": torch.float16, "float64": torch.float64}


def stored_dtype(scores_dtype: torch.dtype | str | None, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scores are kept for inputs of `dtype`, from what the caller asked for."""
    usual = score_dtype(dtype)
    asked = NAMES.get(scores_dtype) if isinstance(scores_dtype, str) else scores_dtype
    if scores_dtype is None:
        return usual
    if asked not in (usual, torch.float16):
        raise ValueError(
            f"scores_dtype must be None ({usual} for these inputs) or torch.float16, got {scores_dtype!r}."
        )
    return asked


def buffer_dtype(stored: torch.dtype) -> torch.dtype:
    """The dtype of the tensor that holds the scores, and later their gradient."""
    return torch.bfloat16 if stored == torch.float16 else stored


def as_scores(buffer: Tensor) -> Tensor:
    """The scores in a buffer; a view."""
    return buffer.view(torch.float16) if buffer.dtype == torch.bfloat16 else buffer


def in_two_bytes(scores: Tensor) -> Tensor:
    """Scores as float16 keeps them: rounded, saturating at 65504; what is infinite stays so."""
    return torch.where(scores.isinf(), scores, scores.clamp(-LARGEST, LARGEST)).to(torch.float16)


class WideScores(torch.autograd.Function):
    """The scores of a buffer of two bytes in float32; their gradient is stored in bfloat16."""

    @staticmethod
    def forward(ctx: Any, buffer: Tensor) -> Tensor:
        return as_scores(buffer).to(torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to(torch.bfloat16)


class RoundedScores(torch.autograd.Function):
    """Scores rounded as in two bytes, in their own dtype; the gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return in_two_bytes(scores).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class RoundedGradient(torch.autograd.Function):
    """The tensor itself; its gradient is rounded to bfloat16."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to(torch.bfloat16).to(gradient.dtype)
