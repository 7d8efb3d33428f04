"""Times of one attention layer on a GPU: torch's own attention, and inherited scores with and without the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from uncollapse.attention import hopfield_attention
from uncollapse.attention.gpu_test import kernels_switched

SHAPES = ((8, 16, 1024, 64), (2, 16, 4096, 64))  # B, H, T, D: a layer of GPT-2 medium, 8,192 tokens a step
ROUNDS = 10
LAYERS = 4


@dataclass(frozen=True)
class GpuTime:
    """Milliseconds of a layer, forward and backward, the fastest of `ROUNDS`."""

    name: str
    shape: str
    milliseconds: float
    ratio: float  # to torch's own attention

    def __str__(self) -> str:
        return f"{self.shape}, {self.name}: {self.milliseconds:.3f} ms a layer, {self.ratio:.2f} of SDPA"


def measure_layers(device: torch.device) -> Iterator[GpuTime]:
    """Forward and backward of four causal layers in bfloat16, in turn with torch's own attention."""
    for batch, heads, length, size in SHAPES:
        shape = f"B{batch} H{heads} T{length} D{size}, bfloat16, causal"
        sizes = (3, batch, heads, length, size)
        layers = [torch.randn(sizes, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(LAYERS)]
        for name, step in (("SDPA", _sdpa), *FORMS.items()):
            ours, theirs = _alternately(partial(step, layers), partial(_sdpa, layers))
            yield GpuTime(name, shape, ours / LAYERS, ours / theirs)


def _sdpa(layers: list[Tensor]) -> None:
    outs = [scaled_dot_product_attention(t[0], t[1], t[2], is_causal=True) for t in layers]
    torch.autograd.grad([out.sum() for out in outs], layers)


def _inherited(backend: str, scores_dtype: torch.dtype | None, kernels: bool) -> Callable[[list[Tensor]], None]:
    def step(layers: list[Tensor]) -> None:
        state, outs = None, []
        with kernels_switched(kernels):
            for tensors in layers:
                q, k, v = tensors.unbind()
                out, state = hopfield_attention(
                    q, k, v, state, is_causal=True, backend=backend, scores_dtype=scores_dtype
                )
                outs.append(out)
            torch.autograd.grad([out.sum() for out in outs], layers)

    return step


FORMS = {
    "carried": _inherited("carried", None, True),
    "carried, scores_dtype=float16": _inherited("carried", torch.float16, True),
    "stacked": _inherited("stacked", None, True),
    "carried in torch operations": _inherited("carried", None, False),
}


def _alternately(run: Callable[[], None], against: Callable[[], None]) -> tuple[float, float]:
    """Milliseconds of each, the fastest of `ROUNDS` in turn, after one round that is not counted."""
    times: list[tuple[float, float]] = []
    for _ in range(ROUNDS + 1):
        theirs = _milliseconds(against)
        times.append((_milliseconds(run), theirs))
    return min(ours for ours, _ in times[1:]), min(theirs for _, theirs in times[1:])


def _milliseconds(run: Callable[[], None]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop))
