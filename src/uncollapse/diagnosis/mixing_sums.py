"""How far the attention of a layer brings tokens together, tile by tile."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from uncollapse.metrics.mixing import mixing_bound_of_sums


class MixingSums:
    """What the bound of how far attention brings tokens together needs of one batch: sums over rows, no map.

    A sequence counts if its real tokens attend to its real tokens only, each to one at least; else its bound is NaN.
    """

    def __init__(self, shape: tuple[int, int, int, int], real: Tensor | None) -> None:
        batch, heads, queries, keys = shape
        self.real = torch.ones(batch, queries, dtype=torch.bool) if real is None else real.cpu()  # (B, Q)
        self.square = queries == keys
        self.lost = torch.zeros(batch, heads, dtype=torch.bool)  # a real row without a key, or not finite
        self.squares = torch.zeros(batch, heads)
        self.columns = torch.zeros(batch, heads, keys)

    def add(self, squares: Tensor, columns: Tensor, usable: Tensor, start: int) -> None:
        """Add rows from `start` on: squared weights (B, H, rows), column sums (B, H, keys), and which can be used."""
        stop = start + usable.shape[-1]
        self.squares += squares.where(usable, 0.0).sum(dim=-1).cpu()
        self.columns[..., : columns.shape[-1]] += columns.cpu()
        self.lost |= (~usable.cpu() & self.real[:, None, start:stop]).any(dim=-1)

    def bounds(self) -> Tensor:
        """The bound of each sequence and head, (B, H)."""
        if not self.square:
            return torch.full_like(self.squares, math.nan)
        elsewhere = self.columns.where(~self.real[:, None], 0.0).sum(dim=-1)
        found = mixing_bound_of_sums(self.real.sum(dim=-1, keepdim=True).float(), self.squares, self.columns)
        return found.where(~self.lost & (elsewhere == 0.0) & (self.real.sum(dim=-1, keepdim=True) > 1), math.nan)
