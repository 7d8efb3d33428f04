"""What is usual: quantiles over healthy heads and layers, as `uncollapse reproduce calibration` stored them."""

from __future__ import annotations

import json
import math
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "usual.json"


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
    usual = quantiles().get(column, {}).get("0.95")
    if usual is None:
        return f"{value:.3g}"
    high = "high; " if value > usual else ""
    return f"{value:.3g} ({high}95 % of healthy heads are below {usual:.2g})"
