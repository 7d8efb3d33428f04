"""Stacks of attention layers run with one backend and compared with another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import uncollapse as uc


@dataclass
class Stack:
    """The inputs of `depth` layers, made from a seed."""

    depth: int = 4
    batch: int = 2
    heads: int = 2
    groups: int = 2
    queries: int = 7
    keys: int = 7
    size: int = 4
    value_size: int = 4
    dtype: torch.dtype = torch.float64
    seed: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        maker = torch.Generator().manual_seed(self.seed)

        def draw(heads: int, tokens: int, size: int) -> Tensor:
            # As Hugging Face models hand it over: heads and tokens swapped in memory.
            t = torch.randn(self.batch, tokens, heads, size, generator=maker, dtype=torch.float64)
            return t.transpose(1, 2)

        self.layers = [
            (
                2.0 * draw(self.heads, self.queries, self.size),
                draw(self.groups, self.keys, self.size),
                draw(self.groups, self.keys, self.value_size),
            )
            for _ in range(self.depth)
        ]
        self.weights = [draw(self.heads, self.queries, self.value_size) for _ in range(self.depth)]

    def inputs(self, dtype: torch.dtype | None = None) -> list[tuple[Tensor, Tensor, Tensor]]:
        made = [tuple(t.to(dtype or self.dtype, copy=True).requires_grad_() for t in layer) for layer in self.layers]
        return made  # type: ignore[return-value]

    def run(self, layers: list[tuple[Tensor, Tensor, Tensor]], backend: str, **more: Any) -> tuple[list[Tensor], Any]:
        outs, state = [], None
        for q, k, v in layers:
            out, state = uc.hopfield_attention(
                q, k, v, state, backend=backend, enable_gqa=True, **{**self.arguments, **more}
            )
            outs.append(out)
        return outs, state

    def loss(self, outs: list[Tensor]) -> Tensor:
        return sum((out * w.to(out.dtype)).sum() for out, w in zip(outs, self.weights, strict=True))  # type: ignore[return-value]


@dataclass
class Result:
    outs: list[Tensor]
    scores: Tensor
    gradients: list[Tensor]


def evaluate(stack: Stack, backend: str, dtype: torch.dtype | None = None, **more: Any) -> Result:
    """Outputs, last scores, and all gradients of a loss that reads every output."""
    layers = stack.inputs(dtype)
    outs, state = stack.run(layers, backend, **more)
    scores = state.scores().detach()
    stack.loss(outs).backward()
    return Result([o.detach() for o in outs], scores, [t.grad for layer in layers for t in layer])  # type: ignore[misc]


def assert_same(ours: Result, truth: Result, tolerance: float) -> None:
    """Agreement in outputs, gradients and in those scores that are computed at all."""
    computed = ours.scores != float("-inf")
    torch.testing.assert_close(ours.scores[computed], truth.scores[computed], rtol=tolerance, atol=tolerance)
    for got, want in zip(ours.outs + ours.gradients, truth.outs + truth.gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


RULES = {
    "hopfield": uc.ScoreRule.hopfield(0.3),
    "hopfield-raw": uc.ScoreRule.hopfield(0.7, start="raw"),
    "keeps-all": uc.ScoreRule.hopfield(1.0, start="raw"),
    "keeps-nothing": uc.ScoreRule.hopfield(0.0),
    "self_attention": uc.ScoreRule.self_attention(),
    "realformer": uc.ScoreRule.realformer(),
    "realformer-mean": uc.ScoreRule.realformer(mean=True),
    "revit": uc.ScoreRule.revit(0.4),
}
MASKS = ("none", "causal", "bool", "additive", "padding", "fully_masked rows")


def masking(kind: str, stack: Stack, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments that hide keys in one of the ways of MASKS."""
    maker = torch.Generator().manual_seed(stack.seed + 1)
    full = (stack.batch, stack.heads, stack.queries, stack.keys)
    if kind == "causal":
        return {"is_causal": True}
    if kind == "bool":
        return {"attn_mask": torch.rand(full[2:], generator=maker) > 0.4}
    if kind == "additive":
        return {"attn_mask": torch.randn(full[1:], generator=maker, dtype=torch.float64).to(dtype)}
    if kind == "padding":
        return {"attn_mask": torch.rand(full[0], 1, 1, full[3], generator=maker) > 0.3}
    if kind == "fully_masked rows":
        mask = torch.rand(full, generator=maker) > 0.4
        mask[:, :, :: max(1, stack.queries // 3)] = False
        return {"attn_mask": mask}
    return {}


@st.composite
def stacks(draw: st.DrawFn, dtype: torch.dtype) -> Stack:
    """Stacks of all shapes, rules and masks; lengths around the edges of a tile of 64 rows."""
    mask = draw(st.sampled_from(MASKS))
    groups = draw(st.integers(1, 2))
    queries = draw(st.sampled_from([1, 2, 17, 63, 64, 65, 129]))
    stack = Stack(
        depth=4,
        batch=draw(st.integers(1, 2)),
        heads=groups * draw(st.integers(1, 3)),
        groups=groups,
        queries=queries,
        keys=queries if mask == "causal" else draw(st.sampled_from([1, 3, 64, 100])),
        size=draw(st.sampled_from([3, 8, 16])),
        value_size=draw(st.sampled_from([2, 8, 24])),
        dtype=dtype,
        seed=draw(st.integers(0, 1000)),
    )
    stack.arguments = {"rule": RULES[draw(st.sampled_from(sorted(RULES)))], **masking(mask, stack, dtype)}
    return stack
