"""How sure a verdict is: sequences are drawn again with replacement, and each draw is judged (bootstrap)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .thresholds import CHOSEN, Thresholds, entropy_collapsed, is_sink, rank_collapsed

if TYPE_CHECKING:
    from .result import Diagnosis

DRAWS = 400
SEED = 0  # the same report gives the same words each time


@dataclass(frozen=True)
class Draws:
    """Draws of a table's groups: for each row of the table, the means that each draw gives, (draws, rows)."""

    keys: pd.DataFrame  # layer, or layer and head, of each row
    sums: dict[str, np.ndarray]  # name -> (draws, rows)

    def mean(self, name: str, over: str) -> np.ndarray:
        """The mean of a column whose sums were kept, over the column that counts."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio: np.ndarray = self.sums[name] / self.sums[over]
        return ratio


def draws(groups: pd.DataFrame, by: list[str]) -> Draws | None:
    """Draw the groups of sequences with replacement; None with fewer than two, which tell nothing of a spread."""
    if groups.empty or groups["group"].nunique() < 2:
        return None
    values = [column for column in groups.columns if column not in (*by, "group")]
    wide = groups.pivot_table(index=by, columns="group", values=values, fill_value=0.0, aggfunc="sum")
    count = groups["group"].nunique()
    weights = np.random.default_rng(SEED).multinomial(count, np.full(count, 1.0 / count), size=DRAWS)  # (draws, groups)
    return Draws(wide.index.to_frame(index=False), {name: weights @ wide[name].to_numpy().T for name in values})


@dataclass(frozen=True)
class Certainty:
    """Shares of draws in which a verdict holds, by kind; empty where there is one sequence only."""

    shares: dict[str, float]
    sequences: int

    def words(self, kind: str) -> str:
        """A clause for the end of a sentence; nothing where it is not known."""
        if not self.shares:
            return "; one sequence cannot say how sure that is" if self.sequences == 1 else ""
        if kind not in self.shares:
            return ""
        share = self.shares[kind]
        sure = "sure" if share >= 0.99 else "likely" if share >= 0.9 else "unsure"
        return f"; {sure}: it holds in {share:.0%} of {DRAWS} draws of the {self.sequences} sequences"


def certainty(diagnosis: Diagnosis, by: Thresholds = CHOSEN) -> Certainty:
    """Judge every draw by the thresholds that judge the report."""
    shares: dict[str, float] = {}
    nothing = np.ones(DRAWS, dtype=bool)
    by_layer, by_head = draws(diagnosis.layer_groups, ["layer"]), draws(diagnosis.head_groups, ["layer", "head"])
    if by_layer is not None:
        aligned, centred = (by_layer.mean(name, "pairs") for name in ("cosine_aligned", "cosine_centred_aligned"))
        residuals = by_layer.mean("residual_frobenius", "sequences")
        found = rank_collapsed(aligned, residuals, centred, by).any(axis=1)
        shares["rank collapse"], nothing = float(found.mean()), nothing & ~found
    if by_head is not None:
        entropies, gaps = by_head.mean("entropy_normalised", "rows"), by_head.mean("gap_mean", "rows")
        found = entropy_collapsed(entropies, gaps, by).any(axis=1)
        shares["entropy collapse"], nothing = float(found.mean()), nothing & ~found
        shares["sink"] = float(is_sink(by_head.mean("sink_strongest", "sequences")).any(axis=1).mean())
    if shares:
        shares["healthy"] = shares["not measured"] = float(nothing.mean())
    return Certainty(shares, int(diagnosis.info.get("sequences", 0)))
