"""Shape and random inputs of a stack of attention layers, and the shapes that are measured.

Shapes: B batch, H query heads, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LayerInputs = Sequence[tuple[Tensor, Tensor, Tensor]]  # q, k, v of each layer, all (B, H, length, D)

LENGTHS = (256, 1024, 4096, 8192)
QUICK_LENGTHS = (256,)


@dataclass(frozen=True)
class StackShape:
    """The sizes of a stack of attention layers.

    >>> StackShape(length=8, layers=2).name
    '2 layers, B1 H12 T8 D64, causal'
    """

    length: int
    layers: int = 12
    batch: int = 1
    heads: int = 12
    size: int = 64
    causal: bool = True
    groups: int | None = None  # key/value heads, in estimates only; a measured stack has as many as query heads

    @property
    def name(self) -> str:
        masking = "causal" if self.causal else "no mask"
        return f"{self.layers} layers, B{self.batch} H{self.heads} T{self.length} D{self.size}, {masking}"

    def inputs(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> LayerInputs:
        """Random queries, keys and values with the strides of Hugging Face models: (B, T, H, D) transposed."""
        generator = torch.Generator().manual_seed(seed)
        size = (self.batch, self.length, self.heads, self.size)

        def draw() -> Tensor:
            return torch.randn(size, generator=generator, dtype=dtype).transpose(1, 2)

        return [(draw(), draw(), draw()) for _ in range(self.layers)]


# ViT-Tiny at 224 pixels: 14 x 14 patches and a class token.
VIT = StackShape(length=197, batch=8, heads=3, causal=False)


def measured_shapes(lengths: Sequence[int]) -> list[StackShape]:
    """GPT-2 small's attention at each length, shortest first, then ViT-Tiny's."""
    return [*(StackShape(length=length) for length in sorted(set(lengths))), VIT]
