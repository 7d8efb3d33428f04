"""The figures that the backends are held to: each with the bar it must reach and the aim beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from .attention import measure_one
from .estimate import memory
from .implementations import IMPLEMENTATIONS, SDPA
from .measurement import TRAINING, Measurement
from .noise import noisy_parts
from .stack_shape import StackShape


@dataclass(frozen=True)
class Bar:
    """One figure of a causal stack of 12 layers: forward and backward, float32, two cores."""

    name: str  # of the implementation
    length: int
    kind: Literal["time", "memory"]  # against SDPA's time, or against the estimate of what `carried` adds
    bar: float
    aim: float

    @property
    def figure(self) -> str:
        what = "forward + backward / SDPA" if self.kind == "time" else "added peak memory / carried's estimate"
        return f"{self.name}, {self.length:,} tokens: {what}"


BARS = (
    Bar("reversible", 1024, "time", 1.0, 0.85),
    Bar("reversible", 4096, "time", 1.3, 1.0),
    Bar("carried, float16", 4096, "time", 0.85, 0.7),
    Bar("stacked, window 4", 4096, "time", 2.0, 1.6),
    Bar("reversible", 8192, "memory", 0.25, 0.15),
)


def measure_bars(rounds: int, budget: float, limit: float) -> Iterator[Measurement]:
    """SDPA against itself, and one measurement for each bar; about ten minutes on two free cores."""
    by_name = {implementation.name: implementation for implementation in IMPLEMENTATIONS}
    for length in lengths():
        yield measure_one(SDPA, StackShape(length=length), True, rounds, budget, limit)
    for bar in BARS:
        yield measure_one(by_name[bar.name], StackShape(length=bar.length), True, rounds, budget, limit)


def lengths() -> list[int]:
    """The lengths at which a time is compared, where SDPA is timed against itself first."""
    return sorted({bar.length for bar in BARS if bar.kind == "time"})


def bars_table(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each bar that was measured: the figure, what was measured, the bar and the aim."""
    rows = table[(table["group"] == "attention") & (table["work"] == TRAINING) & table["causal"].astype(bool)]
    noisy = {shape for shape, work in noisy_parts(table) if work == TRAINING}
    found = []
    for bar in BARS:
        cell = rows[(rows["name"] == bar.name) & (rows["length"] == bar.length)]
        if not cell.empty:
            value = measured_value(bar, cell.iloc[0])
            word = "not measured" if value is None else "reached" if value <= bar.bar else "missed"
            if bar.kind == "time" and cell.iloc[0]["shape"] in noisy:
                word = "noisy"
            found.append({"figure": bar.figure, "measured": value, "bar": bar.bar, "aim": bar.aim, "": word})
    return pd.DataFrame(found, columns=["figure", "measured", "bar", "aim", ""])


def measured_value(bar: Bar, cell: pd.Series[Any]) -> float | None:
    """The figure in a row of measurements, or None where it is missing."""
    if bar.kind == "time":
        return None if pd.isna(cell["ratio"]) else float(cell["ratio"])
    if pd.isna(cell["peak_mb"]):
        return None
    return float(cell["peak_mb"]) * 1e6 / memory("carried, C++", StackShape(length=bar.length), training=True)
