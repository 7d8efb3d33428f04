"""Similarity of tokens: the cosine of every pair of tokens of a sequence. Tokens are rows: (T, M).

Pairs are counted into histograms tile by tile, so that no T x T matrix is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .histogram import Histogram
from .rank import residual

ALIGNED = 0.99  # a pair with a larger cosine counts as aligned
BINS = 400  # over [-1, 1], so that ALIGNED is an edge
COSINE_WIDTH = 2.0 / BINS
_ALIGNED_BIN = round((ALIGNED + 1.0) / COSINE_WIDTH)
_ROWS = 128  # rows of a tile
_SMALL = 4.0  # a token so many times smaller than the mean loses digits where the mean is added to it again


@dataclass
class Cosines:
    """The cosines of all pairs of distinct tokens of one or more sequences, pooled."""

    histogram: Histogram

    @classmethod
    def empty(cls) -> Cosines:
        """No pairs."""
        return cls(Histogram.empty(-1.0, 1.0, BINS))

    def add(self, x: Tensor) -> None:
        """Count the pairs of one sequence (T, M)."""
        for rows, columns, cosines in _tiles(unit_tokens(x)):
            self._count(cosines, rows == columns)

    def merge(self, other: Cosines) -> None:
        """Add pairs that were counted elsewhere."""
        self.histogram.counts += other.histogram.counts
        self.histogram.sum += other.histogram.sum

    def _count(self, cosines: Tensor, own: bool) -> None:
        """Count a tile; that of tokens with themselves has each pair twice."""
        if own:
            first, second = torch.triu_indices(len(cosines), len(cosines), 1)
            cosines = cosines[first, second]
        self.histogram.add(cosines.clamp_(-1.0, 1.0))

    @property
    def aligned(self) -> int:
        """The number of pairs above ALIGNED."""
        return int(self.histogram.counts[_ALIGNED_BIN:].sum())

    @property
    def aligned_share(self) -> float:
        """The share of pairs above ALIGNED."""
        return self.aligned / self.histogram.total if self.histogram.total else float("nan")


def _tiles(unit: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Products of tokens with themselves and with all later ones, a tile of rows at a time."""
    for start in range(0, len(unit), _ROWS):
        rows, later = slice(start, start + _ROWS), slice(start + _ROWS, len(unit))
        yield rows, rows, unit[rows] @ unit[rows].mT
        if later.start < later.stop:
            yield rows, later, unit[rows] @ unit[later].mT


# From centred tokens of length one and three factors of each token (share, inverse, common), counts (2, bins) and sums
# (2,) of both kinds of cosines; None: it cannot.
CountPairs = Callable[[Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor] | None]


def count_raw_and_centred(x: Tensor, raw: Cosines, centred: Cosines, count: CountPairs | None = None) -> None:
    """Count the pairs of a sequence (T, M) in `raw`, and those of its residual R = X - 1 mean^T in `centred`.

    One product serves both: x_i x_j = r_i r_j + (r_i + r_j) mean + mean^2. This way round digits are lost only for
    tokens that are much smaller than the mean; where there is one, the products are taken twice.

    Args:
        x: the tokens.
        raw: where their pairs are counted.
        centred: where those of the residual are.
        count: a faster way to take and count the products, tried first.

    >>> raw, centred = Cosines.empty(), Cosines.empty()
    >>> count_raw_and_centred(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), raw, centred)
    >>> raw.histogram.mean, centred.histogram.mean
    (0.0, -1.0)
    """
    rest = residual(x)
    largest = x.abs().max()  # squares of very small or very large tokens would leave float32's range
    mean = x.mean(dim=0) / largest
    size = torch.linalg.vector_norm(x / largest, dim=-1)
    if not bool(size.min() * _SMALL > torch.linalg.vector_norm(mean)):  # also where one is zero, or not a number
        raw.add(x)
        centred.add(rest)
        return
    unit, rest = unit_tokens(rest), rest / largest
    share = torch.linalg.vecdot(unit, rest) / size  # |r_i| / |x_i|
    inverse = 1.0 / size
    common = (rest @ mean + mean @ mean / 2) / size
    counted = None if count is None else count(unit, share, inverse, common, BINS)
    if counted is not None:
        for into, counts, total in zip((raw, centred), *counted, strict=True):
            into.histogram.counts += counts
            into.histogram.sum += float(total)
        return
    for rows, columns, cosines in _tiles(unit):
        whole = (cosines * share[rows, None]).mul_(share[columns])
        whole.addr_(common[rows], inverse[columns]).addr_(inverse[rows], common[columns])
        raw._count(whole, rows == columns)
        centred._count(cosines, rows == columns)


def unit_tokens(x: Tensor) -> Tensor:
    """Tokens scaled to length one; a token of zeros stays zero."""
    largest = x.abs().amax(dim=-1, keepdim=True)  # a tenth of the time of vector_norm
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
