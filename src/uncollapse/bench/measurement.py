"""One measured cell: a contestant at a shape, or the reason why it was not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pandas as pd

from .timing import Timings

FORWARD, TRAINING = "forward", "forward + backward"


@dataclass(frozen=True)
class Measurement:
    """A row of the result."""

    group: str  # "attention" or "model"
    name: str
    against: str  # what the ratio is to
    shape: str
    length: int
    causal: bool
    work: str  # FORWARD, TRAINING, or what a model does
    seconds: float | None = None  # best of the rounds
    against_seconds: float | None = None  # best of the same rounds
    ratio: float | None = None
    median_ratio: float | None = None
    peak_mb: float | None = None  # added by one run
    against_peak_mb: float | None = None
    rounds: int = 0
    note: str = ""  # why a figure is missing


def figures(cell: Measurement, race: Timings, peak: int | None, against_peak_mb: float | None) -> Measurement:
    """A cell with the numbers of its race."""
    peak_mb = megabytes(peak)
    return replace(
        cell,
        seconds=min(race.seconds),
        against_seconds=min(race.against),
        ratio=race.ratio,
        median_ratio=race.median_ratio,
        peak_mb=peak_mb,
        against_peak_mb=peak_mb if cell.name == cell.against else against_peak_mb,
        rounds=len(race.seconds),
    )


def megabytes(size: int | None) -> float | None:
    """Bytes as megabytes."""
    return None if size is None else size / 1e6


def as_table(cells: Sequence[Measurement]) -> pd.DataFrame:
    """One row a cell."""
    return pd.DataFrame([asdict(cell) for cell in cells])
