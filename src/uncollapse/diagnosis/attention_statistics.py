"""What is measured of one layer's attention, tile by tile; the attention map is never held."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from uncollapse.attention.masking import Masking, rows_of
from uncollapse.attention.row_statistics import AttentionRows, compiled_rows
from uncollapse.attention.scores import ScoreSource
from uncollapse.metrics import localisation, position_bins, propagates

from .attention_rows import counted_rows, largest_logits, rows_of_tile, tiles
from .mixing_sums import MixingSums

ENTROPY_WIDTH = 0.1  # nats, of a bin of the entropy histogram
ENTROPY_BINS = 140  # up to e^14 = 1.2 million visible keys
POSITION_BINS = 64
GROUPS = 16  # sequences are pooled in so many groups, which are what a bootstrap draws from: memory stays bounded
GROUP_SUMS = ("rows", "entropy_normalised", "gap_mean", "sequences", "sink_strongest")  # of a head in a group


class _OfSequences:
    """What one batch of attention gives, by sequence and head, while its tiles are read."""

    def __init__(self, shape: tuple[int, int, int, int], real: Tensor | None) -> None:
        batch, heads, _, keys = shape
        self.received = torch.zeros(batch, heads, keys)  # weight that each key gets, summed over rows
        self.rows, self.normalised, self.gaps = torch.zeros(3, batch, heads, dtype=torch.float64)
        self.mixing = MixingSums(shape, real)


class AttentionStatistics:
    """Sums over query rows for every head of one layer; memory does not grow with the number of rows."""

    def __init__(self, heads: int, query: int = -1) -> None:
        self.query = query  # which real query position `rho` is of
        self.broken = False
        self.from_weights = False  # then scores are known up to a constant of the row: their size means nothing
        self.rows = torch.zeros(heads, dtype=torch.float64)  # with at least two visible keys, padding left out
        self.sums = torch.zeros(4, heads, dtype=torch.float64)  # entropy, normalised, without first, weight on first
        self.entropy_min = torch.full((heads,), math.inf)
        self.entropy_counts = torch.zeros(heads, ENTROPY_BINS, dtype=torch.int64)
        self.strongest = torch.zeros(2, heads, dtype=torch.float64)  # largest mean weight of a key; sequences
        self.mixing = torch.zeros(2, heads, dtype=torch.float64)  # bounds of sequences, summed; sequences
        self.logit_max = torch.full((heads,), -math.inf)
        self.gap_max = torch.full((heads,), -math.inf)
        self.spread_max = torch.full((heads,), -math.inf)
        self.sequences = 0
        self.groups = torch.zeros(GROUPS, heads, len(GROUP_SUMS), dtype=torch.float64)
        self.logit_count = torch.zeros(heads, dtype=torch.float64)
        self.logit_sums = torch.zeros(2, heads, dtype=torch.float64)  # of scores, of their squares
        self.propagated = torch.zeros(heads, POSITION_BINS, dtype=torch.float64)
        self.positions = torch.zeros(heads, POSITION_BINS, dtype=torch.float64)

    @torch.no_grad()
    def add(self, source: ScoreSource, masking: Masking, parts: int = 1) -> None:
        """Add the attention of a batch; `parts`: entries of the batch that are windows of one and the same sequence."""
        batch = source.shape[0]
        if 0 in source.shape:
            return  # an empty batch has no rows
        seen = _OfSequences(source.shape, masking.real)
        whole = compiled_rows(source, masking)
        if whole is not None:
            self._add_rows(whole, masking, 0, source.shape[2], seen)
        else:
            for start, stop in tiles(source, masking):
                self._add_rows(rows_of_tile(source, masking, start, stop), masking, start, stop, seen)
        group = (self.sequences + torch.arange(batch) // parts) % GROUPS
        self.sequences += batch // parts
        strongest = seen.received.amax(dim=-1).double() / seen.rows.clamp(min=1)  # 0 where no row counted
        some = (seen.rows > 0).double()
        self.strongest += torch.stack([strongest.sum(dim=0), some.sum(dim=0)])
        bounds = seen.mixing.bounds().double()
        self.mixing += torch.stack([bounds.nansum(dim=0), (~bounds.isnan()).double().sum(dim=0)])
        self.groups.index_add_(0, group, torch.stack([seen.rows, seen.normalised, seen.gaps, some, strongest], dim=-1))
        self._add_propagation(source, masking)

    def _add_rows(self, row: AttentionRows, masking: Masking, start: int, stop: int, seen: _OfSequences) -> None:
        """Add rows start .. stop."""
        keys = row.received.shape[-1]
        count, usable = counted_rows(masking, start, stop, keys, row.sums)
        finite = row.sums.isfinite() & row.squares.isfinite()
        self.broken = self.broken or bool((usable & (count >= 2) & ~finite).any())
        usable = usable & finite
        valid = usable & (count >= 2)

        def by_sequence(values: Tensor) -> Tensor:  # (B, H, rows) -> (B, H)
            return values.where(valid, 0.0).cpu().double().sum(dim=2)  # in float64, which not every device has

        def largest(values: Tensor) -> Tensor:  # (B, H, rows) -> (H,)
            return values.where(valid, -math.inf).amax(dim=(0, 2)).cpu()

        normalised = by_sequence(row.entropy / count.clamp(min=2).log())
        others = (by_sequence(v).sum(dim=0) for v in (row.entropy, row.entropy_no_first, row.first))
        entropy, no_first, first_weight = others
        self.sums += torch.stack([entropy, normalised.sum(dim=0), no_first, first_weight])
        rows = by_sequence(torch.ones_like(count))
        self.rows += rows.sum(dim=0)
        self.logit_count += by_sequence(count).sum(dim=0)
        self.logit_sums += torch.stack([by_sequence(row.sums).sum(dim=0), by_sequence(row.squares).sum(dim=0)])
        self.entropy_min = torch.minimum(self.entropy_min, row.entropy.where(valid, math.inf).amin(dim=(0, 2)).cpu())
        self.logit_max = torch.maximum(self.logit_max, largest(row.largest_score))
        self.gap_max = torch.maximum(self.gap_max, largest(row.gap))
        self.spread_max = torch.maximum(self.spread_max, largest(row.largest_score - row.sums / count.clamp(min=1)))
        self._count_entropies(row.entropy, valid)
        seen.received[..., :keys] += row.received.cpu()
        seen.mixing.add(row.weight_squares, row.received_of_all, usable, start)
        seen.rows += rows
        seen.normalised += normalised
        seen.gaps += by_sequence(row.gap)

    def add_largest(self, source: ScoreSource, masking: Masking) -> None:
        """Take nothing but the largest logits of a batch: a maximum has to be exact, means do not need every row."""
        with torch.autocast(source.device.type, enabled=False):  # which would take the products in half precision
            largest, broken = largest_logits(source, masking)
        self.logit_max = torch.maximum(self.logit_max, largest)
        self.broken = self.broken or broken

    def merge(self, other: AttentionStatistics) -> None:
        """Add what was measured elsewhere of the same layer, such as in another process."""
        for name in ("rows", "sums", "entropy_counts", "strongest", "mixing", "sequences", "groups", "logit_count"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("logit_sums", "propagated", "positions"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("logit_max", "gap_max", "spread_max"):
            setattr(self, name, torch.maximum(getattr(self, name), getattr(other, name)))
        self.entropy_min = torch.minimum(self.entropy_min, other.entropy_min)
        self.broken, self.from_weights = self.broken or other.broken, self.from_weights or other.from_weights

    def _count_entropies(self, entropies: Tensor, valid: Tensor) -> None:
        heads = entropies.shape[1]
        bins = (entropies / ENTROPY_WIDTH).long().clamp(max=ENTROPY_BINS - 1)
        bins += torch.arange(heads, device=bins.device).view(1, -1, 1) * ENTROPY_BINS
        counts = torch.bincount(bins[valid], minlength=heads * ENTROPY_BINS)
        self.entropy_counts += counts.view(heads, ENTROPY_BINS).cpu()

    def _add_propagation(self, source: ScoreSource, masking: Masking) -> None:
        """Count which positions propagate to the chosen query of each sequence."""
        chosen = self._chosen_rows(source.shape[0], source.shape[2], masking.real)
        keys = source.shape[3]
        for row in sorted({row for row in chosen if row is not None}):
            scores = source.rows(row, row + 1, keys)  # (B, H, 1, K)
            if masking.bias is not None:
                scores += rows_of(masking.bias, row, row + 1, keys)
            visible = masking.tile(row, row + 1, keys, scores.device)
            seen = torch.ones_like(scores, dtype=torch.bool) if visible is None else rows_of(visible, 0, 1, keys)
            scores, seen = scores.squeeze(2).cpu(), seen.expand(scores.shape).squeeze(2).cpu()
            for index in (i for i, r in enumerate(chosen) if r == row):
                self._add_propagating(scores[index], seen[index])

    def _chosen_rows(self, batch: int, queries: int, real: Tensor | None) -> list[int | None]:
        """The row of the chosen query in each sequence, counted among its real tokens; None if it is too short."""
        rows: list[int | None] = []
        for index in range(batch):
            places = torch.arange(queries) if real is None else real[index].cpu().nonzero().flatten()
            rows.append(int(places[self.query]) if -len(places) <= self.query < len(places) else None)
        return rows

    def _add_propagating(self, scores: Tensor, seen: Tensor) -> None:
        """Count one query's scores (H, K); `seen` (H, K) may differ between heads."""
        same = bool((seen == seen[:1]).all())
        for heads in [slice(None)] if same else [slice(h, h + 1) for h in range(len(seen))]:
            over = scores[heads][:, seen[heads][0]]  # (heads, T)
            if over.shape[-1] < 2:
                continue
            finite = over.isfinite().all(dim=-1).double()
            bins = position_bins(over.shape[-1], POSITION_BINS)
            self.propagated[heads].index_add_(1, bins, propagates(over) * finite[:, None])
            self.positions[heads].index_add_(1, bins, torch.ones_like(over, dtype=torch.float64) * finite[:, None])

    @property
    def rho(self) -> Tensor:
        """Frequency of propagation by position, (heads, POSITION_BINS); NaN where no position fell."""
        return self.propagated / self.positions

    def columns(self) -> dict[str, Tensor]:
        """This layer's columns of `Diagnosis.heads`, one value per head."""
        seen = self.rows > 0
        means = (self.sums / self.rows).where(seen, math.nan)
        mean_logit, mean_square = self.logit_sums / self.logit_count
        rho, fell = self.rho, self.positions > 0  # a head's rho is localised over the bins into which positions fell
        localised = [localisation(r[f]) if f.any() else torch.tensor(math.nan) for r, f in zip(rho, fell, strict=True)]
        return {
            "entropy_mean": means[0],
            "entropy_min": self.entropy_min.double().where(seen, math.nan),
            "entropy_normalised": means[1],
            "entropy_no_first": means[2],
            "sink": means[3],
            "sink_strongest": self.strongest[0] / self.strongest[1],
            "mixing_bound": self.mixing[0] / self.mixing[1],
            "logit_max": self.logit_max.double().where(self.logit_max.isfinite() & (not self.from_weights), math.nan),
            "gap_mean": (self.groups[..., 2].sum(dim=0) / self.rows).where(seen, math.nan),
            "gap_max": self.gap_max.double().where(seen, math.nan),
            "spread_max": self.spread_max.double().where(seen, math.nan),
            "logit_std": (mean_square - mean_logit.square()).clamp(min=0.0).sqrt(),
            "propagation_mean": self.propagated.sum(-1) / self.positions.sum(-1),
            "localisation": torch.stack(localised).double(),
        }
