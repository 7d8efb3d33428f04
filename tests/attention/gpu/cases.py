"""Stacks of layers run by the Triton kernels under the interpreter, compared with the definition in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import uncollapse as uc
from tests.attention.parity import RULES, Result, Stack, masking

# The largest error relative to the largest number. Products of float32 are exact to 2^-24 and sum some hundred terms.
# Narrow inputs round weights and score gradients once to 2^-11 or 2^-8 before each product, through the layers.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Case:
    """One stack of layers."""

    mask: str = "causal"
    rule: str = "hopfield"
    backend: str = "carried"
    dtype: torch.dtype = torch.float32
    depth: int = 2
    heads: int = 1
    groups: int = 1
    queries: int = 70
    keys: int = 70
    size: int = 16
    value_size: int = 16
    batch: int = 1
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if value != Case.__dataclass_fields__[name].default}
        return ", ".join(f"{name} {value}" for name, value in shown.items() if value) or "as usual"

    @property
    def tolerance(self) -> float:
        """With scores in two bytes gradients are handed down in bfloat16."""
        return TOLERANCE[torch.bfloat16 if "scores_dtype" in self.more else self.dtype]

    def stack(self) -> Stack:
        """Inputs that are numbers of the case's dtype, so that only the arithmetic differs."""
        sizes = {name: getattr(self, name) for name in ("depth", "batch", "heads", "groups", "queries", "keys")}
        stack = Stack(**sizes, size=self.size, value_size=self.value_size, dtype=self.dtype)
        stack.layers = [tuple(t.to(self.dtype).double() for t in layer) for layer in stack.layers]  # type: ignore[misc]
        stack.arguments = {"rule": RULES[self.rule], **masking(self.mask, stack, torch.float32), **self.more}
        return stack


def run(stack: Stack, backend: str, dtype: torch.dtype, engine: str | None) -> Result:
    """Outputs, scores and gradients; every layer must have been run by `engine`."""
    torch.manual_seed(0)  # of the dropout
    layers, outs, state = stack.inputs(dtype), [], None
    for q, k, v in layers:
        out, state = uc.hopfield_attention(q, k, v, state, backend=backend, enable_gqa=True, **stack.arguments)
        outs.append(out)
        assert engine in (None, state.engine), f"{state.engine} ran this layer, not {engine}"
    scores = state.scores().detach()  # type: ignore[union-attr]
    stack.loss(outs).backward()
    return Result([o.detach() for o in outs], scores, [t.grad for layer in layers for t in layer])  # type: ignore[misc]


def error(case: Case) -> float:
    """The largest relative error of outputs, gradients and scores."""
    stack = case.stack()
    ours = run(stack, case.backend, case.dtype, "triton")
    # float64 runs in torch operations, with the same dropout; the definition draws another one
    stack.arguments.pop("scores_dtype", None)
    truth = run(stack, case.backend if "dropout_p" in case.more else "reference", torch.float64, None)
    seen = (ours.scores != float("-inf")) & (truth.scores != float("-inf"))
    pairs = [(ours.scores[seen], truth.scores[seen])]
    pairs += zip(ours.outs + ours.gradients, truth.outs + truth.gradients, strict=True)
    return max(relative_error(got, want) for got, want in pairs)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference in units of the largest number; infinite if anything is NaN, which max() would hide."""
    difference = (got.detach().double() - want.detach().double()).abs().max() / want.detach().abs().max().clamp_min(
        1e-3
    )
    return float(difference) if difference.isfinite() else float("inf")
