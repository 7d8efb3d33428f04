"""Rows of attention in plain torch, a tile of scores at a time: the reference of the compiled pass, for any source."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from uncollapse.attention.masking import Masking, rows_of
from uncollapse.attention.row_statistics import AttentionRows, compiled_largest
from uncollapse.attention.scores import CappedScores, ScoreSource, SinkScores
from uncollapse.metrics import row_statistics
from uncollapse.metrics.entropy import HIDDEN

TILE_ENTRIES = 1 << 20  # scores of a tile: 4 MB, which stays in the cache between the passes over it
TILE_ENTRIES_ELSEWHERE = 1 << 24  # on a GPU, where starting a kernel costs more than reading 64 MB


def in_softmax(
    source: ScoreSource, masking: Masking, cap: float | None, sink: Tensor | None
) -> tuple[ScoreSource, Masking]:
    """Scores and what hides them, with a soft cap and a sink (H,) if there are such."""
    if cap is not None:
        source = CappedScores(source, cap)
    if sink is not None:
        source, masking = SinkScores(source, sink), masking.with_sink(*source.shape[2:], source.device)
    return source, masking


def tiles(source: ScoreSource, masking: Masking) -> Iterator[tuple[int, int]]:
    """The first row of each tile, and the row after its last; none where no row has two keys to choose from."""
    batch, heads, queries, keys = source.shape
    entries = TILE_ENTRIES if source.device.type == "cpu" else TILE_ENTRIES_ELSEWHERE
    rows = max(2, entries // max(1, batch * heads * keys))  # one causal row alone has no second key
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        if (stop if masking.is_causal else keys) >= 2:
            yield start, stop


def scores_of_tile(source: ScoreSource, masking: Masking, start: int, stop: int) -> Tensor:
    """Rows start .. stop over the keys that any of them may see, bias included, nothing hidden: (B, H, rows, keys)."""
    keys = stop if masking.is_causal else source.shape[3]
    scores = source.rows(start, stop, keys)
    if masking.bias is not None:
        scores += rows_of(masking.bias, start, stop, keys)
    return scores


def counted_rows(masking: Masking, start: int, stop: int, keys: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """How many keys rows start .. stop see, and which of them are real and see one: (B, H, rows) as `like`."""
    count = masking.visible_keys(start, stop, keys, like.device).expand(like.shape)
    usable = count >= 1
    if masking.real is not None:
        usable = usable & masking.real[:, None, start:stop].to(like.device)
    return count, usable


def rows_of_tile(source: ScoreSource, masking: Masking, start: int, stop: int) -> AttentionRows:
    """Rows start .. stop, over two keys at least."""
    scores = scores_of_tile(source, masking, start, stop)
    keys, device = scores.shape[-1], scores.device
    masking.hide(scores, start, 0.0)
    sums, squares = scores.sum(dim=-1), torch.linalg.vector_norm(scores, dim=-1).square()
    finite = sums.isfinite() & squares.isfinite()
    if not finite.all():
        scores.masked_fill_(~finite.unsqueeze(-1), 0.0)
    masking.hide(scores, start, HIDDEN)
    first = masking.first_visible(start, stop, keys, device).expand(sums.shape)
    row = row_statistics(scores, first)
    count, usable = counted_rows(masking, start, stop, keys, sums)
    usable = usable & finite
    shares = [(1.0 / row.normaliser).where(of, 0.0) for of in (usable & (count >= 2), usable)]
    columns = torch.stack(shares, dim=-2) @ row.exponentials  # (B, H, 2, keys)
    return AttentionRows(
        sums=sums,
        squares=squares,
        entropy=row.entropy,
        entropy_no_first=row.entropy_no_first,
        first=row.first,
        largest_score=row.largest_score,
        gap=row.gap,
        weight_squares=(torch.linalg.vector_norm(row.exponentials, dim=-1) / row.normaliser).square(),
        received=columns[..., 0, :],
        received_of_all=columns[..., 1, :],
    )


@torch.no_grad()
def largest_logits(source: ScoreSource, masking: Masking) -> tuple[Tensor, bool]:
    """The largest score of each head over all rows with at least two visible keys, (H,), and whether NaN was seen.

    A head without such a row has -inf. Rows that are not finite are left out, as `AttentionStatistics` does.
    """
    largest, broken = torch.full((source.shape[1],), -math.inf), False
    for start, stop, rows in _largest_of_rows(source, masking) if 0 not in source.shape else ():
        count, usable = counted_rows(masking, start, stop, source.shape[3], rows)
        valid, finite = usable & (count >= 2), rows.isfinite()
        broken = broken or bool((valid & ~finite).any())
        largest = torch.maximum(largest, rows.where(valid & finite, -math.inf).amax(dim=(0, 2)).float().cpu())
    return largest, broken


def _largest_of_rows(source: ScoreSource, masking: Masking) -> Iterator[tuple[int, int, Tensor]]:
    """The largest score that rows see, (B, H, rows), with the first of these rows and the one after the last."""
    whole = compiled_largest(source, masking)
    if whole is not None:
        yield 0, source.shape[2], whole
        return
    for start, stop in tiles(source, masking):
        scores = scores_of_tile(source, masking, start, stop)
        masking.hide(scores, start, -math.inf)
        yield start, stop, scores.amax(dim=-1)
