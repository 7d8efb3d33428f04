"""What is usual: quantiles over healthy heads and layers, as `uncollapse reproduce calibration` stored them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

if TYPE_CHECKING:
    from .result import Diagnosis

FILE = "usual.json"
LOW, HIGH = "0.05", "0.95"


@dataclass(frozen=True)
class Shown:
    """A number that the page shows beside what is usual: its words, its table, and on which sides it can be unusual."""

    words: str
    table: Literal["heads", "layers"]
    sides: tuple[Literal["below", "above"], ...]
    share: bool = False  # told in per cent


SHOWN = {
    "entropy_normalised": Shown("entropy of a head, of what its keys allow", "heads", ("below", "above"), share=True),
    "gap_mean": Shown("mean gap of a head's two largest scores", "heads", ("above",)),
    "gap_max": Shown("largest gap of a head", "heads", ("above",)),
    "sink_strongest": Shown("weight on a head's strongest key", "heads", ("above",), share=True),
    "residual_ratio": Shown("residual ratio of a layer", "layers", ("below",)),
    "cosine_mean": Shown("mean cosine of a layer's tokens", "layers", ("above",)),
    "cosine_aligned": Shown("aligned token pairs of a layer", "layers", ("above",), share=True),
}


@cache
def quantiles() -> dict[str, dict[str, float]]:
    """Quantiles of healthy models by column: {"gap_mean": {"0.05": ..., "0.95": ...}, ...}."""
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    return dict(loaded["quantiles"])


def beside_usual(column: str, value: float) -> str:
    """A number beside what is usual, where that is known and the number is above it.

    >>> beside_usual("gap_mean", math.nan)
    'unknown'
    """
    if math.isnan(value):
        return "unknown"
    usual = quantiles().get(column, {}).get(HIGH)
    if usual is None:
        return f"{value:.3g}"
    high = "high; " if value > usual else ""
    return f"{value:.3g} ({high}95 % of healthy heads are below {usual:.2g})"


def main_numbers(diagnosis: Diagnosis) -> pd.DataFrame:
    """The main numbers of a report, smallest to largest, each beside what is usual, and how many are outside."""
    rows = []
    for column, shown in SHOWN.items():
        table: pd.DataFrame = getattr(diagnosis, shown.table)
        usual = quantiles().get(column)
        values = table[column].dropna() if column in table else pd.Series(dtype=float)
        if usual is None or values.empty:
            continue
        ends = {"below": usual[LOW], "above": usual[HIGH]}
        outside = {"below": int((values < ends["below"]).sum()), "above": int((values > ends["above"]).sum())}
        told = [f"{outside[side]} of {len(values)} {side}" for side in shown.sides if outside[side]]
        rows.append(
            {
                "number": shown.words,
                "here": _range(values.min(), values.max(), shown.share),
                "usual": _usual(ends, shown),
                "outside": "\n".join(told) or "none",
            }
        )
    return pd.DataFrame(rows)


def _range(low: float, high: float, share: bool) -> str:
    texts = [_digits(100 * value if share else value) for value in (low, high)]
    unit = "\u00a0%" if share else ""  # a narrow column does not part the two
    return (texts[0] if texts[0] == texts[1] else " to ".join(texts)) + unit


def _digits(value: float) -> str:
    """Two digits, and no power of ten.

    >>> [_digits(value) for value in (0.00041, 0.042, 0.996, 87.5, 1566.2)]
    ['0', '0.042', '1', '88', '1,566']
    """
    return f"{value:,.0f}" if abs(value) >= 10 else f"{round(value, 3):.2g}"


def _usual(ends: dict[str, float], shown: Shown) -> str:
    if len(shown.sides) == 2:
        return _range(ends["below"], ends["above"], shown.share)
    (side,) = shown.sides
    return f"{'up to' if side == 'above' else 'over'} {_range(ends[side], ends[side], shown.share)}"
