"""Statistics of attention rows on CPUs, in one pass over scores that are never held: the C++ side of a diagnosis.

The readable reference is `uncollapse.diagnosis.attention_rows`, which serves every other source, mask and device.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from . import _native as native
from .masking import Masking
from .scores import QueryKeyScores, ScoreSource

WORTH = 1 << 18  # scores of a layer below which a compiled pass saves less than a millisecond


@dataclass
class AttentionRows:
    """What is read of rows of attention. Fields are (B, H, rows), but for the last two, which are (B, H, keys).

    A row with a score that is not finite has `sums` or `squares` that are not, and nothing else of it counts.
    """

    sums: Tensor  # of the scores that the row sees
    squares: Tensor  # of their squares
    entropy: Tensor
    entropy_no_first: Tensor  # without the first visible key, renormalised
    first: Tensor  # weight on the first visible key
    largest_score: Tensor
    gap: Tensor  # of the largest score to the second largest; means nothing where a row sees one key
    weight_squares: Tensor  # the sum of the squared weights
    received: Tensor  # weight that each key gets from rows that see two keys or more
    received_of_all: Tensor  # from all rows


def compiled_rows(source: ScoreSource, masking: Masking) -> AttentionRows | None:
    """All rows of a layer in one compiled pass; None where that does not serve."""
    arguments = _arguments(source, masking)
    if arguments is None:
        return None
    rows, columns = native.operators("row_statistics").row_statistics(*arguments[:3], scale=arguments[3])
    return AttentionRows(*rows, *columns)


def compiled_largest(source: ScoreSource, masking: Masking) -> Tensor | None:
    """The largest score that each row sees, (B, H, Q): -inf where it sees none; None where C++ does not serve."""
    arguments = _arguments(source, masking)
    if arguments is None:
        return None
    largest: Tensor = native.operators("row_statistics").largest_scores(*arguments[:3], scale=arguments[3])
    return largest


def _arguments(source: ScoreSource, masking: Masking) -> tuple[Tensor, Tensor, Tensor, float] | None:
    batch, heads, queries, keys = source.shape
    plain = isinstance(source, QueryKeyScores) and masking.bias is None and source.device.type == "cpu"
    if not plain or batch * heads * queries * keys < WORTH or not native.available("row_statistics"):
        return None
    runs = masking.runs(queries, keys)
    if runs is None:
        return None
    assert isinstance(source, QueryKeyScores)
    return source.q, source.k, runs.expand(batch, heads, queries, 2), source.scale
