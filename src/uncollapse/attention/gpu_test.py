"""The Triton kernels against the definition, on the user's GPU: what `uncollapse gpu-test` runs.

Nobody who wrote them had a GPU. They are used by default only where all these cases have passed.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._gpu.availability import SWITCH
from ._gpu.configs import generation
from ._gpu.verification import identity, is_verified, save_result
from .functional import hopfield_attention

__all__ = [
    "CASES",
    "GpuCase",
    "GpuOutcome",
    "identity",
    "is_verified",
    "kernels_switched",
    "obstacle",
    "run_case",
    "save_result",
]

# Largest error in units of the largest number. Three products in TF32 leave out terms of 2^-22, summed over hundreds;
# narrow inputs round weights and score gradients to 2^-11 or 2^-8 before each product, through three layers.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LAYERS = 3


@dataclass(frozen=True)
class GpuCase:
    """Three layers of one backend on random inputs.

    >>> str(GpuCase(torch.bfloat16, queries=197, keys=197))
    'carried, bfloat16, causal, B2 H4 G4 Q197 K197 D64'
    """

    dtype: torch.dtype
    backend: str = "carried"
    mask: str = "causal"  # causal, none, bool, additive
    heads: int = 4
    groups: int = 4
    queries: int = 256
    keys: int = 256
    size: int = 64
    dropout_p: float = 0.0
    two_bytes: bool = False
    learned: bool = False

    def __str__(self) -> str:
        extra = [name for name in ("two_bytes", "learned") if getattr(self, name)]
        extra += [f"dropout {self.dropout_p}"] if self.dropout_p else []
        shape = f"B2 H{self.heads} G{self.groups} Q{self.queries} K{self.keys} D{self.size}"
        kind = str(self.dtype).removeprefix("torch.")
        return ", ".join((self.backend, kind, self.mask, shape, *(word.replace("_", " ") for word in extra)))


BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CASES = (
    GpuCase(BF16),
    GpuCase(F16),
    GpuCase(F32),
    GpuCase(BF16, queries=197, keys=197, mask="none"),
    GpuCase(F32, queries=130, keys=130, heads=8, groups=2, size=40),
    GpuCase(BF16, queries=100, keys=77, mask="bool"),
    GpuCase(F16, queries=100, keys=128, mask="additive", dropout_p=0.2),
    GpuCase(BF16, size=128, heads=8, groups=2),
    GpuCase(F32, size=128, heads=2, groups=2),
    GpuCase(F16, size=16, dropout_p=0.1),
    GpuCase(BF16, two_bytes=True),
    GpuCase(F16, two_bytes=True, queries=65, keys=65),
    GpuCase(BF16, learned=True, heads=4, groups=2),
    GpuCase(BF16, backend="stacked"),
    GpuCase(F32, backend="stacked", queries=130, keys=130, heads=8, groups=2),
    GpuCase(F16, backend="stacked", queries=100, keys=77, mask="bool", dropout_p=0.2),
    GpuCase(BF16, backend="stacked", size=128),
)


@dataclass(frozen=True)
class GpuOutcome:
    """What came of a case: the largest relative error, or why it did not run."""

    case: GpuCase
    error: float
    fault: str = ""

    @property
    def tolerance(self) -> float:
        return TOLERANCES[torch.bfloat16 if self.case.two_bytes else self.case.dtype]  # gradients are bfloat16 then

    @property
    def passed(self) -> bool:
        return not self.fault and self.error < self.tolerance

    def __str__(self) -> str:
        result = self.fault or f"error {self.error:.1e}, allowed {self.tolerance:.0e}"
        return f"{'ok    ' if self.passed else 'FAILED'} {self.case}: {result}"


def obstacle(device: torch.device | None) -> str | None:
    """Why there is nothing to test here, as the end of a sentence; None if there is a GPU for it."""
    if device is None:
        return "torch sees no GPU (torch.cuda.is_available() is False)"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if generation(device) is None:
        return f"{torch.cuda.get_device_name(device)} has a capability below 8.0"
    return None


@contextmanager
def kernels_switched(on: bool) -> Iterator[None]:
    """Use the kernels in the block, tested or not; or never."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1" if on else "0"
    try:
        yield
    finally:
        os.environ.pop(SWITCH)
        if before is not None:
            os.environ[SWITCH] = before


def run_case(case: GpuCase, device: torch.device) -> GpuOutcome:
    """Outputs and gradients of the kernels against the definition in float64; whatever is raised is an outcome."""
    try:
        with kernels_switched(True):
            ours, engine = _run(case, device, case.dtype, case.backend)
            if engine != "triton":
                return GpuOutcome(case, float("inf"), f"{engine} ran it, not the kernels")
            # The definition draws its own dropout; in float64 a backend runs in torch operations, with the same hash.
            truth, _ = _run(case, device, torch.float64, case.backend if case.dropout_p else "reference")
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return GpuOutcome(case, float("inf"), f"{type(error).__name__}: {lines[0][:200]}")
    return GpuOutcome(case, max(_relative_error(a, b) for a, b in zip(ours, truth, strict=True)))


def _run(case: GpuCase, device: torch.device, dtype: torch.dtype, backend: str) -> tuple[list[Tensor], str]:
    """Outputs and gradients, and what ran."""
    torch.manual_seed(0)
    maker = torch.Generator().manual_seed(0)

    def draw(heads: int, tokens: int) -> Tensor:
        numbers = torch.randn(2, tokens, heads, case.size, generator=maker).to(case.dtype)  # rounded once, for both
        return numbers.to(dtype).to(device).transpose(1, 2).detach()

    options = _masking(case, device, maker)
    if case.two_bytes and dtype != torch.float64:
        options["scores_dtype"] = torch.float16
    learned = torch.linspace(0.2, 0.7, case.heads, dtype=torch.promote_types(dtype, torch.float32), device=device)
    leaves = [learned.requires_grad_()] if case.learned else []
    state, total, outs, engines = None, torch.zeros((), device=device), [], []
    for _ in range(LAYERS):
        q, k, v = draw(case.heads, case.queries), draw(case.groups, case.keys), draw(case.groups, case.keys)
        leaves += [tensor.requires_grad_() for tensor in (q, k, v)]
        out, state = hopfield_attention(
            q,
            k,
            v,
            state,
            alpha_hidden=learned if case.learned else 0.4,
            backend=backend,
            enable_gqa=True,
            dropout_p=case.dropout_p,
            **options,
        )
        total = total + (out * draw(case.heads, case.queries)).sum()
        outs.append(out.detach())
        engines.append(state.engine)
    return [*outs, *torch.autograd.grad(total, leaves)], next((e for e in engines if e != "triton"), "triton")


def _masking(case: GpuCase, device: torch.device, maker: torch.Generator) -> dict[str, Any]:
    shape = (case.queries, case.keys)
    if case.mask == "bool":
        return {"attn_mask": (torch.rand(shape, generator=maker) > 0.3).to(device)}
    if case.mask == "additive":
        return {"attn_mask": torch.randn(shape, generator=maker).to(device)}
    return {"is_causal": case.mask == "causal"}


def _relative_error(got: Tensor, want: Tensor) -> float:
    error = (got.double() - want.double()).abs().max() / want.double().abs().max().clamp_min(1e-3)
    return float(error) if error.isfinite() else float("inf")
