"""One measurement: time and memory of a workload against its baseline, or why it was not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pandas as pd

from .timing import Timings

FORWARD, TRAINING = "forward", "forward + backward"


@dataclass(frozen=True)
class Measurement:
    """One row of the result."""

    group: str  # "attention" or "model"
    name: str
    against: str  # the baseline of the ratio
    shape: str
    length: int
    causal: bool
    work: str  # FORWARD, TRAINING, or what a model does
    seconds: float | None = None  # minimum over the rounds
    against_seconds: float | None = None  # minimum over the same rounds
    ratio: float | None = None
    median_ratio: float | None = None
    peak_mb: float | None = None  # added by one run
    against_peak_mb: float | None = None
    rounds: int = 0
    note: str = ""  # why numbers are missing


def with_timings(
    measurement: Measurement, timings: Timings, peak: int | None, against_peak_mb: float | None
) -> Measurement:
    """The measurement with its times and peak memory filled in."""
    peak_mb = megabytes(peak)
    return replace(
        measurement,
        seconds=min(timings.seconds),
        against_seconds=min(timings.against),
        ratio=timings.ratio,
        median_ratio=timings.median_ratio,
        peak_mb=peak_mb,
        against_peak_mb=peak_mb if measurement.name == measurement.against else against_peak_mb,
        rounds=len(timings.seconds),
    )


def megabytes(size: int | None) -> float | None:
    """Bytes as megabytes."""
    return None if size is None else size / 1e6


def as_table(measurements: Sequence[Measurement]) -> pd.DataFrame:
    """One row per measurement."""
    return pd.DataFrame([asdict(measurement) for measurement in measurements])
