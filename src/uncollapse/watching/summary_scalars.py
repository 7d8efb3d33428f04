"""Six numbers of a diagnosis that fit on one dashboard, beside the ones of every layer and head."""

from __future__ import annotations

import pandas as pd

from uncollapse.diagnosis.result import Diagnosis

PREFIX = "attention/"  # trackers make a section of it
VERDICT = f"{PREFIX}verdict"  # the name of the text
SUMMARY = {  # name -> table, column, which of its values; each is the worst head or layer, whose place is in the table
    "largest_gap": ("heads", "gap_max", "max"),
    "largest_logit": ("heads", "logit_max", "max"),
    "lowest_entropy": ("heads", "entropy_normalised", "min"),
    "strongest_sink": ("heads", "sink", "max"),
    "most_aligned": ("layers", "cosine_aligned", "max"),
    "lowest_residual": ("layers", "residual_ratio", "min"),
}


def summary_scalars(report: Diagnosis) -> dict[str, float]:
    """The worst value of each measure over all heads or layers; what was not measured is left out.

    >>> import torch, uncollapse as uc
    >>> with uc.Observer("mine") as observer:
    ...     observer.attention(1, torch.zeros(1, 2, 4, 3), torch.zeros(1, 2, 4, 3))
    >>> summary_scalars(observer.diagnosis)["attention/lowest_entropy"]
    1.0
    """
    found = {}
    for name, (table, column, which) in SUMMARY.items():
        values: pd.DataFrame = getattr(report, table)
        if column in values and values[column].notna().any():
            found[f"{PREFIX}{name}"] = float(getattr(values[column], which)())
    return found


def verdict_text(report: Diagnosis) -> str:
    """The verdicts as a list in Markdown, which trackers show as text."""
    return "\n".join(f"- {verdict}" for verdict in report.verdicts)
