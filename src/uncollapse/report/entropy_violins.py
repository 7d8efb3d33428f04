"""How widely attention looks: violins of the entropies of attention rows, by layer and by head of a layer."""

from __future__ import annotations

import pandas as pd

from .chart import Chart
from .violin import outlines, statistics, violins

WIDTH = 0.1  # nats, of a bin of the histogram
AID = "High: rows spread over many keys; all at 0: every row looks at one key (entropy collapse, if scores saturate)."
HEADS_AID = "The same for each head of the chosen layer; choose a head to see its spectrum below."
HEAD_TABLE = "entropy-by-head"  # also drawn by the histogram of the chosen head


def entropy_violins(entropies: pd.DataFrame, depth: int, top: float, name: str = "entropy-violins") -> Chart:
    """Violins by layer, all heads together; `top` is the end of the axis in nats."""
    pooled = entropies.groupby(["layer", "low"], as_index=False)["count"].sum()
    tables = {
        name: outlines(pooled, ["layer"], WIDTH),
        f"{name}-marks": statistics(pooled, ["layer"], WIDTH),
    }
    value = ("entropy in nats", (0.0, top))
    title = "Entropies of rows by layer"
    spec = violins("layer", depth, name, f"{name}-marks", value, title, [], "datum.layer == layer", layer=1)
    return Chart(name, spec, AID, tables)


def head_violins(entropies: pd.DataFrame, heads: int, top: float, name: str = "entropy-violins-of-heads") -> Chart:
    """Violins of the heads of the layer chosen in the page."""
    suffix = name.removeprefix("entropy-violins-of-heads")
    shapes, marks = HEAD_TABLE + suffix, f"{name}-marks"
    tables = {
        shapes: outlines(entropies, ["layer", "head"], WIDTH),
        marks: statistics(entropies, ["layer", "head"], WIDTH),
    }
    value, only = ("entropy in nats", (0.0, top)), ["datum.layer == layer"]
    title = {"expr": "'Entropies of rows by head, layer ' + layer"}
    spec = violins("head", heads, shapes, marks, value, title, only, "datum.head == head", layer=1, head=1)
    return Chart(name, spec, HEADS_AID, tables)


def top_of(entropies: pd.DataFrame) -> float:
    """Where the axis of entropies ends: above the largest one."""
    return float(entropies["low"].max()) + 2 * WIDTH
