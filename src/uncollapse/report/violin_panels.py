"""Violins by layer, a panel a method: histograms of several networks side by side."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from .figure_page import BLUE, GREEN, Drawing, heading
from .violin import HALF, outlines, statistics

PER_ROW = 2


def violin_panels(
    histograms: Mapping[str, pd.DataFrame], width: float, coarser: int, title: tuple[str, str], unit: str
) -> Drawing:
    """Histograms (layer, low, count) by name; `width` is that of a bin, `coarser` of them are drawn as one."""
    panels = [_panel(name, table, width, coarser, unit) for name, table in histograms.items()]
    rows = [alt.hconcat(*panels[i : i + PER_ROW]) for i in range(0, len(panels), PER_ROW)]
    chart: Drawing = alt.vconcat(*rows, title=heading(*title)).resolve_scale(y="shared")
    return chart


def _panel(name: str, table: pd.DataFrame, width: float, coarser: int, unit: str) -> alt.LayerChart:
    shapes = outlines(table, ["layer"], width, coarser)
    half = HALF * shapes["share"] / shapes.groupby("layer")["share"].transform("max")
    shapes = shapes.assign(left=shapes["layer"] - half, right=shapes["layer"] + half)
    depth = int(table["layer"].max())
    x = alt.X(
        "left:Q",
        title="layer",
        scale=alt.Scale(domain=[0.4, depth + 0.6], nice=False),
        axis=alt.Axis(values=list(range(1, depth + 1)), format="d", grid=False),
    )
    area = (
        alt.Chart(shapes)
        .mark_area(orient="horizontal", color=BLUE, opacity=0.6)
        .encode(y=alt.Y("value:Q", title=unit), x=x, x2="right:Q", detail="layer:O")
    )
    marks = (
        alt.Chart(statistics(table, ["layer"], width))
        .mark_point(filled=True, color=GREEN, size=40, opacity=1)
        .encode(
            x=alt.X("layer:Q"),
            y=alt.Y("mean:Q", title=unit),
            tooltip=["layer:Q", *(alt.Tooltip(f"{n}:Q", format=".3f") for n in ("mode", "median", "mean"))],
        )
    )
    chart: alt.LayerChart = (area + marks).properties(width=330, height=200, title=name)
    return chart
