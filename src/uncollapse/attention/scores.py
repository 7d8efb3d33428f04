"""Sources of attention scores, read one tile at a time: queries and keys, or a hidden state."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from .state import HiddenState


class ScoreSource(Protocol):
    """Scores (B, H, Q, K), scaled and unmasked; any rows can be computed without holding the rest."""

    shape: tuple[int, int, int, int]
    device: torch.device

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        """Rows start .. stop over the first `keys` keys, (B, H, rows, keys), float32; the caller may overwrite them."""

    def part(self, first: int, last: int) -> ScoreSource:
        """The scores of entries first .. last of the batch."""


class QueryKeyScores:
    """Scores of plain attention: scale q k^T, with grouped heads."""

    def __init__(self, q: Tensor, k: Tensor, scale: float | None = None) -> None:
        self.q, self.k = q.detach(), k.detach().float()  # (B, H, Q, D), (B, G, K, D)
        self.shape, self.device = (*q.shape[:3], k.shape[2]), q.device
        self.scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else scale

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        (batch, heads), groups, size = self.shape[:2], self.k.shape[1], self.q.shape[3]
        q = self.q[..., start:stop, :].float().mul(self.scale)
        q = q.reshape(batch, groups, heads // groups, stop - start, size)
        return (q @ self.k[:, :, None, :keys].mT).flatten(1, 2)

    def part(self, first: int, last: int) -> QueryKeyScores:
        return QueryKeyScores(self.q[first:last], self.k[first:last], self.scale)


class InheritedScores:
    """Scores of a converted model: the hidden state H_n."""

    def __init__(self, state: HiddenState, entries: slice = slice(None)) -> None:
        batch, heads, queries, keys = state.shape
        self.shape, self.device = (len(range(batch)[entries]), heads, queries, keys), state.device
        self.state, self.entries = state, entries

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        return self.state.rows(start, stop)[self.entries, ..., :keys].detach().float().clone()

    def part(self, first: int, last: int) -> InheritedScores:
        begin = self.entries.start or 0
        return InheritedScores(self.state, slice(begin + first, begin + last))


class CappedScores:
    """Scores under a soft cap: cap tanh(score / cap), as Gemma-2 has it."""

    def __init__(self, source: ScoreSource, cap: float) -> None:
        self.shape, self.device, self.source, self.cap = source.shape, source.device, source, cap

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        return self.source.rows(start, stop, keys).div_(self.cap).tanh_().mul_(self.cap)

    def part(self, first: int, last: int) -> CappedScores:
        return CappedScores(self.source.part(first, last), self.cap)


class SinkScores:
    """Scores beside a learned sink, as gpt-oss has it: one more key behind the others, with one score (H,) a head."""

    def __init__(self, source: ScoreSource, sink: Tensor) -> None:
        batch, heads, queries, keys = source.shape
        self.shape, self.device = (batch, heads, queries, keys + 1), source.device
        self.source, self.sink = source, sink.detach().float().view(1, -1, 1, 1)

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        own = self.source.rows(start, stop, min(keys, self.shape[3] - 1))
        if keys < self.shape[3]:
            return own
        return torch.cat([own, self.sink.expand(*own.shape[:3], 1)], dim=-1)

    def part(self, first: int, last: int) -> SinkScores:
        return SinkScores(self.source.part(first, last), self.sink)


class WeightScores:
    """Scores behind attention weights (B, H, Q, K): their logarithms, which is all that a softmax keeps of them.

    Where rows sum to less than one, because a learned sink took the rest, that rest is one more key behind the others.
    A weight below float32's range counts as its smallest: gaps end at 87.
    """

    def __init__(self, weights: Tensor, has_rest: bool | None = None) -> None:
        weights = weights.detach().float()
        rest = 1.0 - weights.sum(dim=-1, keepdim=True)
        self.has_rest = bool((rest > REST).any()) if has_rest is None else has_rest
        self.weights = torch.cat([weights, rest.clamp(min=0.0)], dim=-1) if self.has_rest else weights
        batch, heads, queries, keys = self.weights.shape
        self.shape, self.device = (batch, heads, queries, keys), weights.device

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        rows = self.weights[:, :, start:stop, :keys]
        return rows.clamp(min=torch.finfo(torch.float32).tiny).log()

    def part(self, first: int, last: int) -> WeightScores:
        return WeightScores(self.weights[first:last, ..., : -1 if self.has_rest else None], self.has_rest)


REST = 1e-2  # what rounding leaves of one in bfloat16 is smaller


def is_weights(x: object) -> bool:
    """Whether something looks like attention weights: (B, H, Q, K), not negative, no row above one, some near one."""
    if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point() or 0 in x.shape:
        return False
    if x.isnan().any():
        return True  # what a broken layer gives; the statistics say so
    sums = x.float().sum(dim=-1)
    return bool((x >= 0).all() and (sums <= 1.0 + REST).all() and (sums > 0.0).any() and sums.max() > 0.5)
