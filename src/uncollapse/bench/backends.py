"""What each backend keeps, by length, and how exact it is, by depth and keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from uncollapse.attention import hopfield_attention
from uncollapse.attention.rule import ScoreRule

from .estimate import memory
from .stack_shape import LayerInputs, StackShape

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
KEEPS = (0.3, 0.5, 0.7, 0.9, 1.0)
DEPTHS = (4, 8, 12, 24, 48)
ERROR_SHAPE = StackShape(length=128, heads=2)  # of one layer; scores of order 1 each
FORMS: dict[str, dict[str, Any]] = {  # name in IMPLEMENTATIONS -> arguments of hopfield_attention
    "carried, C++": {"backend": "carried"},
    "carried, float16": {"backend": "carried", "scores_dtype": torch.float16},
    "reversible": {"backend": "reversible"},
    "stacked": {"backend": "stacked"},
}


def keeps_table(layers: int = 12) -> pd.DataFrame:
    """Gigabytes that training adds beyond SDPA's, estimated: columns name, length, gb."""
    rows = []
    for length in LENGTHS:
        shape = StackShape(length=length, layers=layers)
        plain = memory("SDPA", shape, training=True)
        for name in FORMS:
            rows.append((name, length, (memory(name, shape, training=True) - plain) / 1e9))
    return pd.DataFrame(rows, columns=["name", "length", "gb"])


def measure_errors(depths: Sequence[int] = DEPTHS, keeps: Sequence[float] = KEEPS) -> Iterator[dict[str, Any]]:
    """Relative errors of outputs and gradients in float32 against the definition in float64, one row a backend."""
    for depth in depths:
        shape = StackShape(length=ERROR_SHAPE.length, heads=ERROR_SHAPE.heads, layers=depth)
        layers = shape.inputs()
        for keep in keeps:
            rule = ScoreRule("hopfield", keep=keep, take=1.0 - keep or 1.0)  # keep = 1 is RealFormer
            exact = outputs_and_gradients(layers, rule, torch.float64, backend="reference")
            for name, arguments in FORMS.items():
                found = outputs_and_gradients(layers, rule, torch.float32, **arguments)
                errors = [distance(a, b) for a, b in zip(found, exact, strict=True)]
                yield {"name": name, "depth": depth, "keep": keep, "output": errors[0], "gradient": errors[1]}


def outputs_and_gradients(
    layers: LayerInputs, rule: ScoreRule, dtype: torch.dtype, **arguments: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """All outputs of a causal stack, and the gradients of their sum of squares with respect to queries and keys."""
    leaves = [tuple(t.to(dtype, copy=True).requires_grad_() for t in layer) for layer in layers]
    state, outs = None, []
    for q, k, v in leaves:
        out, state = hopfield_attention(q, k, v, state, rule=rule, is_causal=True, **arguments)
        outs.append(out)
    inputs = [t for q, k, _ in leaves for t in (q, k)]
    gradients = torch.autograd.grad(outs, inputs, [out.detach() for out in outs])
    return [out.detach() for out in outs], list(gradients)


def distance(ours: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest error of a tensor, relative to its size.

    >>> distance([torch.tensor([1.0, 2.2])], [torch.tensor([1.0, 2.0])]) < 0.1
    True
    """
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(ours, exact, strict=True))
