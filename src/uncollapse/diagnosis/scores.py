"""Sources of attention scores, read one tile at a time: queries and keys, or a hidden state."""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor

from uncollapse.attention import HiddenState


class ScoreSource(Protocol):
    """Scores (B, H, Q, K), scaled and unmasked; any rows can be computed without holding the rest."""

    shape: tuple[int, int, int, int]

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        """Rows start .. stop over the first `keys` keys, (B, H, rows, keys), float32; the caller may overwrite them."""


class QueryKeyScores:
    """Scores of plain attention: scale q k^T, with grouped heads."""

    def __init__(self, q: Tensor, k: Tensor, scale: float | None = None) -> None:
        batch, heads, queries, size = q.shape
        groups, keys = k.shape[1:3]
        self.shape = (batch, heads, queries, keys)
        self.q = q.detach().view(batch, groups, heads // groups, queries, size)  # (B, G, H/G, Q, D)
        self.k = k.detach().float().unsqueeze(2)  # (B, G, 1, K, D)
        self.scale = 1.0 / math.sqrt(size) if scale is None else scale

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        tile = self.q[..., start:stop, :].float().mul(self.scale) @ self.k[..., :keys, :].mT
        return tile.flatten(1, 2)


class InheritedScores:
    """Scores of a converted model: the hidden state H_n."""

    def __init__(self, state: HiddenState) -> None:
        self.shape = state.shape
        self.state = state

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        return self.state.rows(start, stop)[..., :keys].detach().float().clone()
