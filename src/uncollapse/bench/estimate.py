"""Arithmetic and memory of every form of attention from its shape, without running it.

Arithmetic counts the products of matrices, two operations a multiplication; the softmax is left out. Memory is in
float32: what a pass adds at its peak, and the queries, keys and values that it holds on to.

Shapes: B batch, H query heads, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from uncollapse.attention._tiling import ScoreLayout

from .contestants import RULE
from .shapes import StackShape

FLOAT = 4  # bytes


@dataclass(frozen=True)
class CostEstimate:
    """What one contestant computes and keeps."""

    tiled: bool  # leaves out the tiles above the diagonal of a causal layer
    forward_products: Callable[[int], int]  # of layer n = 1, 2, ...
    backward_products: Callable[[int], int]
    forward_scores: int  # score matrices that are there at once, without gradients
    training_scores: Callable[[int], int]  # the same with gradients, for so many layers
    training_tokens: Callable[[int], int] = lambda layers: (
        0
    )  # gradients on their way, each the size of Q and K together


def summed(layer: int) -> int:
    """How many layers' products `stacked` adds up in layer n: those whose weight is not lost in float32's rounding.

    >>> summed(12), summed(100)
    (12, 23)
    """
    rounding, weight, count = torch.finfo(torch.float32).eps, 1.0, 1
    for n in range(layer, 1, -1):
        weight *= RULE.coefficients(n)[0]
        if weight <= rounding:
            break
        count += 1
    return count


def _two(layer: int) -> int:
    return 2


def _four(layer: int) -> int:
    return 4


FORMS = {  # a name of `contestants` -> its form
    "SDPA": CostEstimate(True, _two, lambda n: 5, 0, lambda layers: 0),
    "plain attention": CostEstimate(False, _two, _four, 3, lambda layers: layers + 3),
    "plain hopfield": CostEstimate(False, _two, _four, 4, lambda layers: layers + 4),
    "SDPA + mask": CostEstimate(False, lambda n: 3, lambda n: 6, 4, lambda layers: layers + 3),
    "carried, C++": CostEstimate(True, _two, _four, 1, lambda layers: layers),
    "carried, torch": CostEstimate(True, _two, _four, 1, lambda layers: layers),
    "stacked": CostEstimate(
        True, lambda n: summed(n) + 1, lambda n: 3 * summed(n) + 2, 0, lambda layers: 0, lambda layers: summed(layers)
    ),
}


def arithmetic(name: str, shape: StackShape, training: bool) -> int:
    """Floating-point operations of a stack, forward or forward and backward.

    >>> arithmetic("SDPA", StackShape(length=64, layers=1, heads=1), training=False) == 2 * 2 * 64**3
    True
    """
    form = FORMS[name]
    layers = range(1, shape.layers + 1)
    products = sum(form.forward_products(n) + (form.backward_products(n) if training else 0) for n in layers)
    return products * 2 * shape.size * _scores(shape, form)


def memory(name: str, shape: StackShape, training: bool) -> int:
    """Bytes that a stack adds at its peak, forward or forward and backward.

    >>> one = StackShape(length=64, layers=1, heads=1)
    >>> memory("carried, C++", one, training=True) - memory("SDPA", one, training=True) == 4 * 64 * 64
    True
    """
    form = FORMS[name]
    queries = FLOAT * shape.batch * shape.heads * shape.length * shape.size
    keys = queries * (shape.groups or shape.heads) // shape.heads
    scores = FLOAT * _scores(shape, form)
    if not training:
        return form.forward_scores * scores + 2 * queries  # this layer's output and the one before
    outputs_and_gradients = shape.layers * (2 * queries + 2 * keys)
    on_their_way = form.training_tokens(shape.layers) * (queries + keys)
    return form.training_scores(shape.layers) * scores + outputs_and_gradients + on_their_way


def held(name: str, shape: StackShape, training: bool) -> int:
    """Bytes of queries, keys and values that must stay: without gradients one layer's; `stacked` keeps past ones."""
    queries = FLOAT * shape.batch * shape.heads * shape.length * shape.size
    keys = queries * (shape.groups or shape.heads) // shape.heads
    if training:
        return shape.layers * (queries + 2 * keys)
    return (summed(shape.layers) if name == "stacked" else 1) * (queries + keys) + keys


def _scores(shape: StackShape, form: CostEstimate) -> int:
    """Scores of one layer that a form computes or keeps."""
    per_head = ScoreLayout(shape.length, shape.length, shape.causal and form.tiled).per_head
    return shape.batch * shape.heads * per_head
