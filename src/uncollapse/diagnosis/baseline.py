"""What got worse since an earlier diagnosis, by layer and head, beyond what another sample would change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .certainty import draws
from .thresholds import ALIGNED_SHARE, LOW_ENTROPY, RESIDUAL_SHARE, SATURATED_GAP

if TYPE_CHECKING:
    from .result import Diagnosis

# Six standard errors: with 16 sequences Student's t gives one head in 80,000 so large a change by chance.
NOISE = 6.0
# A change counts if it goes at least a tenth of the way that was left to the threshold.
PART_OF_THE_WAY = 0.1


@dataclass(frozen=True)
class _Measure:
    """A column whose mean is compared, what its sums are counted by, and where it would be a collapse."""

    column: str
    over: str
    threshold: float
    words: str


HEADS = (
    _Measure("gap_mean", "rows", SATURATED_GAP, "mean gap"),
    _Measure("entropy_normalised", "rows", LOW_ENTROPY, "entropy"),
)
LAYERS = (
    _Measure("residual_frobenius", "sequences", RESIDUAL_SHARE, "what differs between tokens"),
    _Measure("cosine_aligned", "pairs", ALIGNED_SHARE, "aligned pairs"),
)


def worse(new: Diagnosis, old: Diagnosis) -> list[str]:
    """Sentences on what got worse, the largest change first; a ValueError if the two cannot be compared.

    Collapses that the old model did not have come first, whatever was measured.

    >>> import torch, uncollapse as uc
    >>> def report(size):
    ...     torch.manual_seed(0)
    ...     with uc.Observer() as observer:
    ...         observer.attention(1, size * torch.randn(8, 2, 16, 4), size * torch.randn(8, 2, 16, 4))
    ...         observer.tokens(1, torch.randn(8, 16, 8))
    ...     return observer.diagnosis
    >>> worse(report(1.0), report(1.0)), worse(report(3.0), report(1.0))[0].startswith("layer 1, head")
    ([], True)
    """
    had = {verdict.kind for verdict in old.verdicts}
    found = [f"new: {v.sentence}" for v in new.verdicts if v.is_collapse and v.kind not in had]
    changes = [
        *_changes(new.head_groups, old.head_groups, ["layer", "head"], HEADS),
        *_changes(new.layer_groups, old.layer_groups, ["layer"], LAYERS),
    ]
    return found + [sentence for _, sentence in sorted(changes, reverse=True)]


def _changes(
    new: pd.DataFrame, old: pd.DataFrame, by: list[str], measures: tuple[_Measure, ...]
) -> list[tuple[float, str]]:
    """How far each row has gone to its threshold, and a sentence on it, for those that went there beyond the noise."""
    after, before = draws(new, by), draws(old, by)
    if after is None or before is None:
        if new.empty and old.empty:
            return []
        raise ValueError("one of the two diagnoses has fewer than two sequences: their noise is not known.")
    if not after.keys.equals(before.keys):
        raise ValueError("the two diagnoses are of models with other layers or heads, and cannot be compared.")
    found = []
    for measure in measures:
        now, then = after.mean(measure.column, measure.over), before.mean(measure.column, measure.over)
        change = now.mean(axis=0) - then.mean(axis=0)  # (rows,)
        noise = np.sqrt(now.var(axis=0) + then.var(axis=0))
        left = measure.threshold - then.mean(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            way = change / left
        for row in np.flatnonzero((way > PART_OF_THE_WAY) & (np.abs(change) > NOISE * noise)):
            where = ", ".join(f"{name} {after.keys[name][row]}" for name in by)
            sentence = (
                f"{where}: {measure.words} {then[:, row].mean():.3g} before, {now[:, row].mean():.3g} now "
                f"({way[row]:.0%} of the way to {measure.threshold:g}; noise {noise[row]:.1g})"
            )
            found.append((float(way[row]), sentence))
    return found
