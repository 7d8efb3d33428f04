"""How a score matrix is cut into strips of query rows, and how the strips lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

TILE = 64  # query rows per strip: 64 x 1,024 float32 scores fill half of a common second-level cache


@dataclass(frozen=True)
class Strip:
    """Query rows start .. stop of one head, and the keys 0 .. width that are stored for them."""

    start: int
    stop: int
    width: int
    offset: int  # of the first score in the head's memory

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class ScoreLayout:
    """The scores (Q, K) of one head in contiguous memory, strip after strip.

    A causal layout stores no tile above the diagonal, which is almost half of the matrix.
    """

    queries: int
    keys: int
    causal: bool

    @property
    def per_head(self) -> int:
        """Scores stored for one head."""
        if not self.causal:
            return self.queries * self.keys
        whole = self.queries // TILE
        return TILE * TILE * whole * (whole + 1) // 2 + (self.queries - whole * TILE) * self.queries

    def strips(self) -> tuple[Strip, ...]:
        return _strips(self.queries, self.keys, self.causal)

    def views(self, hidden: Tensor, heads: int) -> Iterator[Tensor]:
        """The strips of a buffer of `heads` heads, as views (heads, rows, width) of its memory."""
        hidden = hidden.view(heads, self.per_head)
        for strip in self.strips():
            rows = strip.stop - strip.start
            yield hidden.narrow(1, strip.offset, rows * strip.width).view(heads, rows, strip.width)


@lru_cache(maxsize=256)
def _strips(queries: int, keys: int, causal: bool) -> tuple[Strip, ...]:
    strips, offset = [], 0
    for start in range(0, queries, TILE):
        stop = min(start + TILE, queries)
        width = stop if causal else keys
        strips.append(Strip(start, stop, width, offset))
        offset += (stop - start) * width
    return tuple(strips)
