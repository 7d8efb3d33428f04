"""Entropies of attention rows: violins by layer, and by head of the selected layer."""

from __future__ import annotations

import pandas as pd

from .chart import Chart
from .violin import outlines, statistics, violins

CAPTION = (
    "High: rows spread over many keys; all at 0: every row looks at one key (entropy collapse, if scores saturate)."
)
HEADS_CAPTION = "The same for each head of the chosen layer; choose a head to see its spectrum below."
HEAD_TABLE = "entropy-by-head"  # also drawn by the histogram of the selected head


def entropy_violins(
    entropies: pd.DataFrame, width: float, depth: int, top: float, name: str = "entropy-violins"
) -> Chart:
    """Violins by layer over all heads; bins have `width`, and the axis ends at `top`, both in nats."""
    pooled = entropies.groupby(["layer", "low"], as_index=False)["count"].sum()
    tables = {
        name: outlines(pooled, ["layer"], width),
        f"{name}-marks": statistics(pooled, ["layer"], width),
    }
    value = ("entropy in nats", (0.0, top))
    title = "Entropies of rows by layer"
    spec = violins("layer", depth, name, f"{name}-marks", value, title, [], "datum.layer == layer", layer=1)
    return Chart(name, spec, CAPTION, tables)


def head_violins(
    entropies: pd.DataFrame, width: float, heads: int, top: float, name: str = "entropy-violins-of-heads"
) -> Chart:
    """Violins of the heads of the layer that is selected in the page."""
    suffix = name.removeprefix("entropy-violins-of-heads")
    shapes, marks = HEAD_TABLE + suffix, f"{name}-marks"
    tables = {
        shapes: outlines(entropies, ["layer", "head"], width),
        marks: statistics(entropies, ["layer", "head"], width),
    }
    value, only = ("entropy in nats", (0.0, top)), ["datum.layer == layer"]
    title = {"expr": "'Entropies of rows by head, layer ' + layer"}
    spec = violins("head", heads, shapes, marks, value, title, only, "datum.head == head", layer=1, head=1)
    return Chart(name, spec, HEADS_CAPTION, tables)


def axis_top(entropies: pd.DataFrame, width: float) -> float:
    """The end of the axis of entropies, just above the largest one."""
    return float(entropies["low"].max()) + 2 * width
