"""What is measured of the tokens that leave one block, sequence by sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from uncollapse.attention.token_pairs import compiled_pairs
from uncollapse.metrics import (
    Cosines,
    count_raw_and_centred,
    effective_rank,
    residual_frobenius,
    residual_ratio,
    singular_values,
    stable_rank,
)

from .attention_statistics import GROUPS

GROUP_SUMS = ("sequences", "residual_frobenius", "pairs", "cosine_mean", "cosine_aligned", "cosine_centred_aligned")


class TokenStatistics:
    """Sums over sequences for one layer; memory does not grow with their number."""

    def __init__(self, decompositions: int) -> None:
        self.decompositions = decompositions  # number of sequences whose ranks are computed
        self.sequences = 0
        self.broken = False  # NaN or inf was seen; such sequences are left out of the sums
        self.sums = {"residual_ratio": 0.0, "residual_frobenius": 0.0, "norm_mean": 0.0}
        self.rank_sums = {"stable_rank": 0.0, "effective_rank": 0.0}
        self.ranked = 0
        self.cosines = Cosines.empty()
        self.centred = Cosines.empty()
        self.groups = torch.zeros(GROUPS, len(GROUP_SUMS), dtype=torch.float64)

    def add(self, x: Tensor, real: Tensor | None) -> None:
        """Add tokens (B, T, M); `real` (B, T) is False at padding."""
        for index, sequence in enumerate(x.detach()):
            tokens = sequence if real is None else sequence[real[index].to(sequence.device)]
            if len(tokens) >= 2:
                self._add_sequence(tokens.to(torch.promote_types(tokens.dtype, torch.float32)))

    def _add_sequence(self, x: Tensor) -> None:
        if not torch.stack(torch.aminmax(x)).isfinite().all():  # NaN is both the smallest and the largest
            self.broken = True
            return
        frobenius, before = residual_frobenius(x).item(), self._pair_sums()
        self.sums["residual_ratio"] += residual_ratio(x).item()
        self.sums["residual_frobenius"] += frobenius
        self.sums["norm_mean"] += torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64).mean().item()
        count_raw_and_centred(x, self.cosines, self.centred, compiled_pairs)
        if self.ranked < self.decompositions:
            singular = singular_values(x)
            self.rank_sums["stable_rank"] += stable_rank(x, singular).item()
            self.rank_sums["effective_rank"] += effective_rank(x, singular).item()
            self.ranked += 1
        added = self._pair_sums() - before
        self.groups[self.sequences % GROUPS] += torch.cat([torch.tensor([1.0, frobenius], dtype=torch.float64), added])
        self.sequences += 1

    def merge(self, other: TokenStatistics) -> None:
        """Add what was measured elsewhere of the same layer, such as in another process."""
        self.sequences += other.sequences
        self.ranked += other.ranked
        self.broken = self.broken or other.broken
        for mine, theirs in ((self.sums, other.sums), (self.rank_sums, other.rank_sums)):
            mine.update({name: value + theirs[name] for name, value in mine.items()})
        self.cosines.merge(other.cosines)
        self.centred.merge(other.centred)
        self.groups += other.groups

    def _pair_sums(self) -> Tensor:
        """Of all pairs so far: their number, the sum of their cosines, and how many are aligned, raw and centred."""
        raw, centred = self.cosines, self.centred
        sums = [raw.histogram.total, raw.histogram.sum, raw.aligned, centred.aligned]
        return torch.tensor(sums, dtype=torch.float64)

    def row(self) -> dict[str, float]:
        """This layer's columns of `Diagnosis.layers`."""
        nan = float("nan")
        means = {name: total / self.sequences if self.sequences else nan for name, total in self.sums.items()}
        ranks = {name: total / self.ranked if self.ranked else nan for name, total in self.rank_sums.items()}
        cosines, centred = self.cosines.histogram, self.centred.histogram
        return {
            **means,
            **ranks,
            "cosine_mean": cosines.mean,
            "cosine_median": cosines.median,
            "cosine_mode": cosines.mode,
            "cosine_aligned": self.cosines.aligned_share,
            "cosine_centred": centred.mean,
            "cosine_centred_aligned": self.centred.aligned_share,
        }
