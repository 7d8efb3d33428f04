"""Arithmetic and memory of every implementation of attention, computed from the shape without running it.

Arithmetic counts matrix products, with two operations per multiply-add; the softmax is left out. Memory is in float32:
what a pass adds at its peak, and the queries, keys and values that it keeps.

Shapes: B batch, H query heads, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from uncollapse.attention.memory import scores_per_head

from .implementations import RULE, WINDOW
from .stack_shape import StackShape

FLOAT = 4  # bytes


@dataclass(frozen=True)
class CostModel:
    """What one implementation computes and keeps, per layer or for a stack of `layers`."""

    tiled: bool  # skips the tiles above the diagonal of a causal layer
    forward_products: Callable[[int], int]  # in layer n = 1, 2, ...
    backward_products: Callable[[int], int]
    forward_scores: int  # score matrices alive at once, without gradients
    training_scores: Callable[[int], int]  # the same with gradients
    training_tokens: Callable[[int], int] = lambda layers: 0  # pending gradients, each the size of Q and K together
    score_bytes: int = FLOAT


def summed(layer: int) -> int:
    """Number of layers whose products `stacked` adds up in layer n: those with a weight above float32's rounding.

    >>> summed(12), summed(100)
    (12, 23)
    """
    rounding, weight, count = torch.finfo(torch.float32).eps, 1.0, 1
    for n in range(layer, 1, -1):
        weight *= float(RULE.coefficients(n)[0])
        if weight <= rounding:
            break
        count += 1
    return count


def _near(layer: int) -> int:
    return min(layer, WINDOW)


def _two(layer: int) -> int:
    return 2


def _four(layer: int) -> int:
    return 4


COST_MODELS = {  # name in IMPLEMENTATIONS: its cost model
    "SDPA": CostModel(True, _two, lambda n: 5, 0, lambda layers: 0),
    "plain attention": CostModel(False, _two, _four, 3, lambda layers: layers + 3),
    "plain hopfield": CostModel(False, _two, _four, 4, lambda layers: layers + 4),
    "SDPA + mask": CostModel(False, lambda n: 3, lambda n: 6, 4, lambda layers: layers + 3),
    "carried, C++": CostModel(True, _two, _four, 1, lambda layers: layers),
    "carried, torch": CostModel(True, _two, _four, 1, lambda layers: layers),
    "carried, float16": CostModel(True, _two, _four, 1, lambda layers: layers, score_bytes=2),
    "reversible": CostModel(True, _two, lambda n: 5, 1, lambda layers: 2),  # what is made afresh is left out
    "stacked, window 4": CostModel(
        True, lambda n: _near(n) + 1, lambda n: 3 * _near(n) + 2, 0, lambda layers: 0, lambda layers: _near(layers)
    ),
    "stacked": CostModel(
        True, lambda n: summed(n) + 1, lambda n: 3 * summed(n) + 2, 0, lambda layers: 0, lambda layers: summed(layers)
    ),
}


def arithmetic(name: str, shape: StackShape, training: bool) -> int:
    """Floating-point operations of a stack, forward or forward and backward.

    >>> arithmetic("SDPA", StackShape(length=64, layers=1, heads=1), training=False) == 2 * 2 * 64**3
    True
    """
    cost = COST_MODELS[name]
    layers = range(1, shape.layers + 1)
    products = sum(cost.forward_products(n) + (cost.backward_products(n) if training else 0) for n in layers)
    return products * 2 * shape.size * _scores(shape, cost)


def memory(name: str, shape: StackShape, training: bool) -> int:
    """Bytes that a stack adds at its peak, forward or forward and backward.

    >>> one = StackShape(length=64, layers=1, heads=1)
    >>> memory("carried, C++", one, training=True) - memory("SDPA", one, training=True) == 4 * 64 * 64
    True
    """
    cost = COST_MODELS[name]
    queries = FLOAT * shape.batch * shape.heads * shape.length * shape.size
    keys = queries * (shape.groups or shape.heads) // shape.heads
    scores = cost.score_bytes * _scores(shape, cost)
    if not training:
        return cost.forward_scores * scores + 2 * queries  # this layer's output and the one before
    outputs_and_gradients = shape.layers * (2 * queries + 2 * keys)
    pending_gradients = cost.training_tokens(shape.layers) * (queries + keys)
    return cost.training_scores(shape.layers) * scores + outputs_and_gradients + pending_gradients


def held(name: str, shape: StackShape, training: bool) -> int:
    """Bytes of queries, keys and values kept alive; without gradients `stacked` and `reversible` keep past ones."""
    queries = FLOAT * shape.batch * shape.heads * shape.length * shape.size
    keys = queries * (shape.groups or shape.heads) // shape.heads
    if training:
        return shape.layers * (queries + 2 * keys)
    past = {"stacked": summed, "reversible": summed, "stacked, window 4": _near}.get(name, lambda layers: 1)
    return past(shape.layers) * (queries + keys) + keys


def _scores(shape: StackShape, cost: CostModel) -> int:
    """Number of scores of one layer that are computed or kept."""
    per_head = scores_per_head(shape.length, shape.length, shape.causal and cost.tiled)
    return shape.batch * shape.heads * per_head
