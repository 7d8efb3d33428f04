"""The implementations of attention that are measured: each runs a stack of layers and yields the layers' outputs.

A generator lets a forward pass without gradients drop each output, as a model does, so that memory is counted fairly.

Shapes: B batch, H heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from uncollapse.attention import hopfield_attention, tile_engine
from uncollapse.attention.rule import ScoreRule

from .stack_shape import LayerInputs

RULE = ScoreRule.hopfield(0.5)  # used by every implementation that inherits scores
NATIVE_SWITCH = "UNCOLLAPSE_NATIVE"
WINDOW = 4  # layers of "stacked, window 4"

StackFunction = Callable[[LayerInputs, bool], Iterator[Tensor]]


@dataclass(frozen=True)
class Implementation:
    """One implementation of attention, run as a stack of layers."""

    name: str
    description: str
    inherits: bool  # False: ordinary attention
    stack: StackFunction
    needs_compiler: bool = False

    def missing(self, layers: LayerInputs) -> str | None:
        """Why it cannot run here, or None."""
        if self.needs_compiler and tile_engine(layers[0][0]) != "cpp":
            return "the C++ tiles are not available: no compiler, or UNCOLLAPSE_NATIVE=0"
        return None


def sdpa(layers: LayerInputs, causal: bool) -> Iterator[Tensor]:
    """Torch's own attention, the baseline."""
    for q, k, v in layers:
        yield functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def plain(layers: LayerInputs, causal: bool) -> Iterator[Tensor]:
    """softmax(Q K^T) V in torch operations."""
    future = _future(layers, causal)
    for q, k, v in layers:
        yield _attend(_scores(q, k), v, future)


def plain_hopfield(layers: LayerInputs, causal: bool) -> Iterator[Tensor]:
    """Inherited scores, written as in the formula."""
    future, hidden = _future(layers, causal), None
    for n, (q, k, v) in enumerate(layers, start=1):
        keep, take = RULE.coefficients(n)
        hidden = take * _scores(q, k) if hidden is None else keep * hidden + take * _scores(q, k)
        yield _attend(hidden, v, future)


def additive_mask(layers: LayerInputs, causal: bool) -> Iterator[Tensor]:
    """SDPA computes this layer's scores; the scores carried so far are its additive mask."""
    future, carried = _future(layers, causal), None
    for n, (q, k, v) in enumerate(layers, start=1):
        take = RULE.coefficients(n)[1]
        mask = None if carried is None else _hide(carried, future)
        yield functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=take * q.shape[-1] ** -0.5
        )
        if n < len(layers):
            hidden = take * _scores(q, k) if carried is None else carried + take * _scores(q, k)
            carried = RULE.coefficients(n + 1)[0] * hidden
            del hidden, mask


def backend_stack(backend: str, in_cpp: bool = True, **more: Any) -> StackFunction:
    """A backend of `hopfield_attention`, with or without its C++ tiles, and with further arguments."""

    def stack(layers: LayerInputs, causal: bool) -> Iterator[Tensor]:
        state = None
        for q, k, v in layers:
            with native_switched(in_cpp):
                out, state = hopfield_attention(q, k, v, state, rule=RULE, is_causal=causal, backend=backend, **more)
            yield out

    return stack


@contextmanager
def native_switched(on: bool) -> Iterator[None]:
    """Turn the C++ tiles off inside the block if `on` is False."""
    before = os.environ.get(NATIVE_SWITCH)
    if not on:
        os.environ[NATIVE_SWITCH] = "0"
    try:
        yield
    finally:
        if not on:
            os.environ.pop(NATIVE_SWITCH)
            if before is not None:
                os.environ[NATIVE_SWITCH] = before


def _future(layers: LayerInputs, causal: bool) -> Tensor | None:
    """Mask of the keys after each query (Q, K); None without causal masking."""
    length = layers[0][0].shape[2]
    return torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """S = Q K^T / sqrt(D): (B, H, Q, K)."""
    return torch.matmul(q.shape[-1] ** -0.5 * q, k.mT)


def _hide(scores: Tensor, future: Tensor | None) -> Tensor:
    return scores if future is None else scores.masked_fill(future, float("-inf"))


def _attend(hidden: Tensor, v: Tensor, future: Tensor | None) -> Tensor:
    return torch.softmax(_hide(hidden, future), dim=-1) @ v


SDPA = Implementation("SDPA", "torch's scaled_dot_product_attention; no scores are inherited", False, sdpa)
IMPLEMENTATIONS = (
    SDPA,
    Implementation("plain attention", "softmax(QKᵀ)V in torch operations; no scores are inherited", False, plain),
    Implementation("plain hopfield", "inherited scores as the formula is written", True, plain_hopfield),
    Implementation("SDPA + mask", "inherited scores as the additive mask of SDPA", True, additive_mask),
    Implementation(
        "carried, C++", "backend carried, its tiles in C++", True, backend_stack("carried"), needs_compiler=True
    ),
    Implementation(
        "carried, torch", "backend carried, its tiles in torch operations", True, backend_stack("carried", False)
    ),
    Implementation(
        "carried, float16",
        "backend carried, its scores in two bytes",
        True,
        backend_stack("carried", scores_dtype=torch.float16),
        needs_compiler=True,
    ),
    Implementation(
        "reversible",
        "backend reversible, two score matrices for all layers",
        True,
        backend_stack("reversible"),
        needs_compiler=True,
    ),
    Implementation("stacked", "backend stacked, no score matrix", True, backend_stack("stacked"), needs_compiler=True),
    Implementation(
        "stacked, window 4",
        "backend stacked over the last four layers, an approximation",
        True,
        backend_stack("stacked", window=WINDOW),
        needs_compiler=True,
    ),
)
