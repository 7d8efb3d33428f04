"""Violins by layer, one panel per method."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from uncollapse.report.violin import HALF, outlines, statistics

from .figure_page import BLUE, GREEN, Drawing, heading

PER_ROW = 2
ROOM = 0.02  # space above the largest value, as a share of the axis


def violin_panels(
    histograms: Mapping[str, pd.DataFrame],
    width: float,
    coarser: int,
    title: tuple[str, str],
    unit: str,
    most: float | None = None,
) -> Drawing:
    """Draw histograms (layer, low, count) by name; bins have `width`, and `coarser` of them are merged into one.

    A violin ends at the outermost filled bins, and at `most`, the largest possible value, if it is given.
    The axis starts at 0 where no value is negative.
    """
    lows = pd.concat([table["low"] for table in histograms.values()])
    top = float(lows.max()) + width if most is None else most
    bottom = min(0.0, float(lows.min()))
    axis = (unit, alt.Scale(domain=[bottom, top + ROOM * (top - bottom)], nice=False, zero=False))
    panels = [
        _panel(name, _shapes(table, width, coarser, top), table, width, axis) for name, table in histograms.items()
    ]
    rows = [alt.hconcat(*panels[i : i + PER_ROW]) for i in range(0, len(panels), PER_ROW)]
    chart: Drawing = alt.vconcat(*rows, title=heading(*title))
    return chart


def _shapes(table: pd.DataFrame, width: float, coarser: int, top: float) -> pd.DataFrame:
    """Outlines (layer, value, left, right), cut at the outermost filled bins of the layer and at `top`."""
    shapes = outlines(table, ["layer"], width, coarser)
    edges = table.groupby("layer")["low"].agg(["min", "max"]).loc[shapes["layer"]].reset_index(drop=True)
    value = shapes["value"].clip(edges["min"], (edges["max"] + width).clip(upper=top))
    half = HALF * shapes["share"] / shapes.groupby("layer")["share"].transform("max")
    return shapes.assign(value=value, left=shapes["layer"] - half, right=shapes["layer"] + half)


def _panel(
    name: str, shapes: pd.DataFrame, table: pd.DataFrame, width: float, axis: tuple[str, alt.Scale]
) -> alt.LayerChart:
    """The violins of one network, with their means."""
    depth = int(table["layer"].max())
    x = alt.X(
        "left:Q",
        title="layer",
        scale=alt.Scale(domain=[0.4, depth + 0.6], nice=False),
        axis=alt.Axis(values=list(range(1, depth + 1)), format="d", grid=False),
    )
    area = (
        alt.Chart(shapes)
        .mark_area(orient="horizontal", color=BLUE, opacity=0.6, clip=True)
        .encode(y=alt.Y("value:Q", title=axis[0], scale=axis[1]), x=x, x2="right:Q", detail="layer:O")
    )
    marks = (
        alt.Chart(statistics(table, ["layer"], width))
        .mark_point(filled=True, color=GREEN, size=40, opacity=1)
        .encode(
            x=alt.X("layer:Q"),
            y=alt.Y("mean:Q", title=axis[0], scale=axis[1]),
            tooltip=["layer:Q", *(alt.Tooltip(f"{n}:Q", format=".3f") for n in ("mode", "median", "mean"))],
        )
    )
    chart: alt.LayerChart = (area + marks).properties(width=330, height=200, title=name)
    return chart
