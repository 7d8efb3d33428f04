"""How a treated run ended, against its healthy twin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..short_runs.store import RunRecord, RunStore, numbers_of
from .treatment import NOTHING

RESCUED, HARMED = 1.02, 1.01  # times the loss of the healthy twin
LAST = 3  # measurements whose mean is the loss at the end: as many as tell that a run fails


@dataclass(frozen=True)
class TreatedOutcome:
    """A run that was treated, and how its loss at the end stands to that of the twin that was not."""

    run: str
    cause: str  # of the pair's fault
    half: str
    branch: str
    healthy: bool  # treated by mistake
    in_time: bool
    against: float  # its loss over the twin's; infinite if it did not come to its end

    @property
    def rescued(self) -> bool:
        """Whether it ended as well as its twin, or nearly."""
        return self.against <= RESCUED

    @property
    def harmed(self) -> bool:
        """Whether it ended worse than its twin."""
        return self.against > HARMED


def end_loss(held_out: Sequence[Any], measurements: int) -> float:
    """The mean of the last held-out losses; infinite if a run ended before its last measurement.

    >>> end_loss([9.0, 3.0, 2.0, 1.0], 4), end_loss([9.0, 3.0, 2.0], 4)
    (2.0, inf)
    """
    losses = numbers_of(held_out)
    found = float(losses[-LAST:].mean()) if len(losses) >= measurements > 0 else math.inf
    return math.inf if math.isnan(found) else found


def outcomes(store: RunStore) -> list[TreatedOutcome]:
    """Of every run whose healthy twin is kept too."""
    found = []
    for record in store.records.values():
        twin = store.records.get(f"{record['twin']}, {NOTHING}")
        if twin is not None:
            about = {key: record[key] for key in ("run", "cause", "half", "branch", "healthy", "in_time")}
            found.append(TreatedOutcome(**about, against=_against(record, twin)))
    return found


def _against(record: RunRecord, twin: RunRecord) -> float:
    measurements = len(twin["held_out"])
    return end_loss(record["held_out"], measurements) / end_loss(twin["held_out"], measurements)


def share_interval(count: int, of: int) -> tuple[float, float]:
    """The exact 95 % interval of a share (Clopper and Pearson).

    >>> low, high = share_interval(0, 10)
    >>> low, round(high, 3)
    (0.0, 0.308)
    """
    from scipy.stats import binomtest

    if of == 0:
        return 0.0, 1.0
    found = binomtest(count, of).proportion_ci()
    return float(found.low), float(found.high)


def changed_for_the_better(before: Sequence[bool], after: Sequence[bool]) -> float:
    """The p-value of McNemar's exact test, two-sided: pairs in which only one of the two is true.

    >>> changed_for_the_better([False] * 6 + [True], [True] * 6 + [True])
    0.03125
    """
    from scipy.stats import binomtest

    gained = int(np.sum(~np.array(before, dtype=bool) & np.array(after, dtype=bool)))
    lost = int(np.sum(np.array(before, dtype=bool) & ~np.array(after, dtype=bool)))
    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
