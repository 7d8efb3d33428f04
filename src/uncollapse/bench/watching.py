"""What watching a training costs: an update that is measured and one that is not, each against a plain one.

The cost by measurement follows from both: of `every` updates one is measured.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import nn

from uncollapse.watching import watch

from .timing import Workload

MEASURED, OTHER, DIAGNOSED = "GPT-2, watched, measured update", "GPT-2, watched, other updates", "GPT-2, diagnosed"
WATCHED = (MEASURED, OTHER, DIAGNOSED)
NEVER = 10**9  # updates between two measurements that do not come
BARS = {  # figure: updates between measurements, bar
    "a training step, watched every 50 updates / plain": (50, 1.02),
    "a training step, watched every 10 updates / plain": (10, 1.08),
}
MEMORY_BAR, DIAGNOSE_BAR = 1.05, 1.25


def watched_step(
    model: Any, ids: torch.Tensor, every: int, step: Callable[..., tuple[Workload, torch.optim.Optimizer]]
) -> tuple[Workload, Workload]:
    """A training step of a watched model, and one of its copy that is not watched."""
    stock = copy.deepcopy(model)

    def loss(of: nn.Module) -> Callable[[], torch.Tensor]:
        return lambda: of(input_ids=ids, labels=ids, use_cache=False).loss

    run, optimizer = step(model, loss(model))
    plain, _ = step(stock, loss(stock))
    watch(model, optimizer, every=every, on_warning=lambda news: None)  # ends with the model
    return run, plain


def watch_table(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each figure that watching and diagnosing are held to: measured, bar, and whether it is reached."""
    ratios = table.drop_duplicates("name").set_index("name")["ratio"]
    peaks = table.drop_duplicates("name").set_index("name")[["peak_mb", "against_peak_mb"]]
    found: list[tuple[str, float, float]] = []
    if MEASURED in ratios and OTHER in ratios:
        for figure, (every, bar) in BARS.items():
            found.append((figure, (ratios[MEASURED] + (every - 1) * ratios[OTHER]) / every, bar))
        memory = peaks.loc[MEASURED, "peak_mb"] / peaks.loc[MEASURED, "against_peak_mb"]
        found.append(("peak memory added by a measured update / by a plain one", memory, MEMORY_BAR))
    if DIAGNOSED in ratios:
        found.append(("diagnose / plain forwards", ratios[DIAGNOSED], DIAGNOSE_BAR))
    rows = [
        (figure, value, bar, "not measured" if pd.isna(value) else "reached" if value <= bar else "missed")
        for figure, value, bar in found
    ]
    return pd.DataFrame(rows, columns=["figure", "measured", "bar", ""])
