"""Similarity of tokens: the cosine of every pair of tokens of a sequence. Tokens are rows: (T, M).

Pairs are counted into histograms tile by tile, so that no T x T matrix is stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .histogram import Histogram

ALIGNED = 0.99  # a pair with a larger cosine counts as aligned
BINS = 400  # over [-1, 1], so that ALIGNED is an edge
COSINE_WIDTH = 2.0 / BINS
_ROWS = 256  # rows of a tile


@dataclass
class Cosines:
    """The cosines of all pairs of distinct tokens of one or more sequences, pooled."""

    histogram: Histogram
    aligned: int = 0  # pairs above ALIGNED

    @classmethod
    def empty(cls) -> Cosines:
        """No pairs."""
        return cls(Histogram.empty(-1.0, 1.0, BINS))

    def add(self, x: Tensor) -> None:
        """Count the pairs of one sequence (T, M)."""
        unit = unit_tokens(x)
        for start in range(0, len(unit), _ROWS):
            rows, later = unit[start : start + _ROWS], unit[start + _ROWS :]
            first, second = torch.triu_indices(len(rows), len(rows), 1)
            self._count((rows @ rows.mT)[first, second])
            if len(later):
                self._count(rows @ later.mT)

    def merge(self, other: Cosines) -> None:
        """Add pairs that were counted elsewhere."""
        self.histogram.counts += other.histogram.counts
        self.histogram.sum += other.histogram.sum
        self.aligned += other.aligned

    def _count(self, cosines: Tensor) -> None:
        cosines.clamp_(-1.0, 1.0)
        self.histogram.add(cosines)
        self.aligned += int((cosines > ALIGNED).sum())

    @property
    def aligned_share(self) -> float:
        """The share of pairs above ALIGNED."""
        return self.aligned / self.histogram.total if self.histogram.total else float("nan")


def unit_tokens(x: Tensor) -> Tensor:
    """Tokens scaled to length one; a token of zeros stays zero."""
    largest: Tensor = torch.linalg.vector_norm(x, math.inf, dim=-1, keepdim=True)
    x = x / largest.where(largest != 0, 1.0)  # squares of very small or very large tokens would leave float32's range
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x.div_(length.where(length != 0, 1.0))


def cosine_pairs(x: Tensor) -> Tensor:
    """The cosine of every pair of distinct tokens: (T, M) -> (T (T - 1) / 2,). For long sequences use `Cosines`.

    >>> import torch
    >>> cosine_pairs(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]))
    tensor([0., 1., 0.])
    """
    unit = unit_tokens(x)
    first, second = torch.triu_indices(len(x), len(x), 1)
    return (unit @ unit.mT)[first, second].clamp(-1.0, 1.0)


def cosine_mean(x: Tensor) -> Tensor:
    """Mean cosine over all pairs of distinct tokens: (..., T, M) -> (...), without forming the pairs.

    >>> import torch
    >>> cosine_mean(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]))
    tensor(0.3333)
    """
    unit = unit_tokens(x)
    tokens = x.shape[-2]
    with_itself = unit.square().sum(dim=(-1, -2))
    return (unit.sum(dim=-2).square().sum(dim=-1) - with_itself) / (tokens * (tokens - 1))
