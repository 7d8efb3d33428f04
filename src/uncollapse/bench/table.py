"""Measurements as the tables and sentences that the command prints and the page shows."""

from __future__ import annotations

from typing import Any

import pandas as pd

from .estimate import arithmetic, held, memory
from .implementations import IMPLEMENTATIONS
from .measurement import TRAINING
from .noise import noisy_parts
from .stack_shape import StackShape

ABSENT = "-"
NOISY = "(noisy)"  # after the name of a column that is not to be trusted


def attention_table(table: pd.DataFrame) -> pd.DataFrame:
    """One row per implementation, one column per shape and pass: ratio to SDPA and added peak memory."""
    rows, noisy = table[table["group"] == "attention"], noisy_parts(table)
    columns: dict[str, list[str]] = {}
    for (shape, work), part in rows.groupby(["shape", "work"], sort=False):
        entries = {row["name"]: _entry(row) for _, row in part.iterrows()}
        flag = f" {NOISY}" if (str(shape), str(work)) in noisy else ""
        columns[f"{_short(str(shape))} {_pass(str(work))}{flag}"] = [entries.get(name, ABSENT) for name in _names(rows)]
    return pd.DataFrame({"attention": _names(rows), **columns})


def model_table(table: pd.DataFrame) -> pd.DataFrame:
    """One row per model: seconds, ratio and peak memory."""
    rows = table[table["group"] == "model"]
    return pd.DataFrame(
        {
            "model": rows["name"],
            "work": rows["work"] + ", " + rows["shape"],
            "seconds": [_number(value, ".3g") for value in rows["seconds"]],
            "against": rows["against"].where(rows["against"] != "", ABSENT),
            "ratio": [_number(value, ".2f") for value in rows["ratio"]],
            "peak MB": [_number(value, ".0f") for value in rows["peak_mb"]],
            "its peak MB": [_number(value, ".0f") for value in rows["against_peak_mb"]],
        }
    )


def left_out(table: pd.DataFrame) -> list[str]:
    """One sentence for each measurement that was not run."""
    rows = table[table["note"] != ""]
    return [f"{row['name']}, {row['work']}, {row['shape']}: {row['note']}." for _, row in rows.iterrows()]


def findings(table: pd.DataFrame) -> list[str]:
    """One sentence for each fast backend: its training time against SDPA by length, where the machine was quiet."""
    rows = table[(table["group"] == "attention") & (table["work"] == TRAINING) & table["ratio"].notna()]
    noisy = {shape for shape, work in noisy_parts(table) if work == TRAINING}
    rows = rows[~rows["shape"].isin(noisy)]
    sentences = []
    for name in ("carried, C++", "carried, torch", "carried, float16", "reversible", "stacked", "stacked, window 4"):
        part = rows[rows["name"] == name]
        if not part.empty:
            values = ", ".join(f"{row['ratio']:.2f} at {row['length']} tokens" for _, row in part.iterrows())
            sentences.append(f"{name}: forward and backward take {values}, in units of SDPA's time.")
    return sentences


def estimate_table(shape: StackShape) -> pd.DataFrame:
    """One row per implementation: arithmetic and memory of both passes, without running anything."""
    rows = []
    for implementation in IMPLEMENTATIONS:
        row: dict[str, str] = {"attention": implementation.name}
        for training in (False, True):
            work = "training" if training else "forward"
            row[f"{work} GFLOP"] = f"{arithmetic(implementation.name, shape, training) / 1e9:,.1f}"
            size = memory(implementation.name, shape, training) + held(implementation.name, shape, training)
            row[f"{work} MB"] = f"{size / 1e6:,.0f}"
        rows.append(row)
    return pd.DataFrame(rows)


def _names(rows: pd.DataFrame) -> list[str]:
    return list(rows["name"].unique())


def _entry(row: pd.Series[Any]) -> str:
    if row["note"]:
        return "not run"
    return f"{row['ratio']:.2f} ({_number(row['peak_mb'], '.0f')})"


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None or pd.isna(value) else format(value, form)


def _short(shape: str) -> str:
    """Shorten '12 layers, B1 H12 T256 D64, causal' to 'T256'."""
    return next(word for word in shape.split() if word.startswith("T"))


def _pass(work: str) -> str:
    return "fwd+bwd" if work == TRAINING else "fwd"
