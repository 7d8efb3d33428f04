"""Charts of the audit: a small chart for a claim, and the overview with one square per claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from uncollapse.report.chart import Chart, Spec

from .figure_page import Drawing, heading
from .formula import readable

WIDTH, HEIGHT = 300, 150
# in display order: what the papers got right comes first
COLOURS = {
    "holds": "#009E73",
    "holds under a condition": "#56B4E9",
    "fails": "#D55E00",
    "cannot be checked at this scale": "#7A8090",
    "pending": "#C3C8D2",
    "error": "#000000",
}
ROWS = 6  # squares per column of the overview


def claim_chart(id: str, plot: Mapping[str, Any]) -> Chart:
    """The chart of one claim; `plot` has x, y (titles), rows of (x, y, series), kind, log_x, log_y, rule, rule_says."""
    table = pd.DataFrame(plot["rows"], columns=["x", "y", "series"])
    table["series"] = table["series"].map(readable)
    named = bool(table["x"].map(lambda value: isinstance(value, str)).any())
    for axis in ("x", "y"):
        if plot[f"log_{axis}"]:
            table = table[table[axis] > 0]
    layers: list[Spec] = [{"mark": _mark(plot, named, len(table)), "encoding": _encoding(plot, table, named)}]
    if plot["rule"] is not None:
        layers.append(_rule(plot, "x" if named else "y"))
    name = f"chart-{id}"
    spec: Spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": WIDTH - 90 if named else WIDTH - 60,
        "height": max(HEIGHT, 17 * table["x"].nunique()) if named else HEIGHT,
        "data": {"table": name},
        "layer": layers,
    }
    return Chart(name, spec, f"Dashed: {plot['rule_says']}." if plot["rule_says"] else "", {name: table})


def _mark(plot: Mapping[str, Any], named: bool, points: int) -> Spec:
    if named or plot["kind"] == "point":
        return {"type": "point", "filled": True, "size": 60, "opacity": 0.9}
    return {"type": "line", "strokeWidth": 2, "point": {"size": 22} if points < 40 else False}


def _encoding(plot: Mapping[str, Any], table: pd.DataFrame, named: bool) -> Spec:
    """Values on the y axis over numbers, or on the x axis over names, which need more room."""
    series = list(dict.fromkeys(table["series"]))
    several, long = len(series) > 1, max(map(len, series)) > 22
    legend = {"title": None, "orient": "bottom", "columns": 1 if long else 2, "labelLimit": 280}
    tooltips = (("series", "series"), ("x", plot["x"]), ("y", plot["y"]))
    value = _axis("y", plot["y"], plot["log_y"])
    encoding: Spec = {
        "color": {
            "field": "series",
            "type": "nominal",
            "sort": series,
            "scale": {"domain": series},
            "legend": legend if several else None,
        },
        "tooltip": [{"field": name, "title": readable(title) or "of"} for name, title in tooltips],
    }
    if named:
        names = {"field": "x", "type": "nominal", "sort": None, "title": None}
        return encoding | {"y": names | {"axis": {"labelLimit": 170, "minExtent": 60}}, "x": value}
    if several and plot["kind"] == "line":
        encoding["strokeDash"] = {"field": "series", "type": "nominal", "sort": series, "legend": None}
    return encoding | {"x": _axis("x", plot["x"], plot["log_x"]), "y": value}


def _rule(plot: Mapping[str, Any], channel: str) -> Spec:
    return {
        "data": {"values": [{"level": plot["rule"], "says": plot["rule_says"]}]},
        "mark": {"type": "rule", "strokeDash": [3, 3], "style": "zero"},
        "encoding": {
            channel: {"field": "level", "type": "quantitative"},
            "tooltip": [{"field": "says", "title": "level"}, {"field": "level"}],
        },
    }


def _axis(field: str, title: str, logarithmic: bool) -> Spec:
    axis: Spec = {"tickCount": 4, "format": ".4~g"} if not logarithmic else {"tickCount": 4, "format": "~e"}
    scale: Spec = {"type": "log"} if logarithmic else {"zero": False}
    return {"field": field, "type": "quantitative", "title": readable(title), "scale": scale, "axis": axis}


def overview_chart(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Drawing:
    """One square per claim, grouped by verdict, with one row per paper."""
    panels = []
    for paper, name in names.items():
        own = [row for row in rows if row["paper"] == paper]
        squares, labels, column = [], [], 0
        for verdict in COLOURS:
            group = [row for row in own if row["verdict"] == verdict]
            if not group:
                continue
            labels.append({"column": column, "text": str(len(group)), "verdict": verdict})
            for index, row in enumerate(group):
                place = {"column": column + index // ROWS, "row": index % ROWS}
                squares.append({**place, "verdict": verdict, "id": row["id"], "statement": row["statement"]})
            column += -(-len(group) // ROWS) + 2
        panels.append(_panel(pd.DataFrame(squares), pd.DataFrame(labels), f"{name}: {len(own)} statements"))
    chart: Drawing = alt.vconcat(
        *panels,
        spacing=18,
        title=heading(
            f"{len(rows)} statements of two papers, each with a computed verdict", "one square per statement"
        ),
    ).configure_view(stroke=None)
    return chart


def _panel(squares: pd.DataFrame, labels: pd.DataFrame, title: str) -> alt.LayerChart:
    x = alt.X("column:Q", axis=None, scale=alt.Scale(domain=[-0.6, 27], nice=False))
    y = alt.Y("row:Q", axis=None, scale=alt.Scale(domain=[ROWS - 0.4, -1.5], nice=False))
    colour = alt.Color(
        "verdict:N",
        sort=list(COLOURS),
        scale=alt.Scale(domain=list(COLOURS)[:-1], range=list(COLOURS.values())[:-1]),
        legend=alt.Legend(
            title=None, orient="bottom", labelFontSize=13, symbolType="square", labelLimit=300, columns=5
        ),
    )
    tiles = (
        alt.Chart(squares)
        .mark_square(size=330, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=["id:N", "verdict:N", "statement:N"])
    )
    numbers = (
        alt.Chart(labels.assign(row=-1))
        .mark_text(align="left", dx=-9, fontSize=17, fontWeight="bold")
        .encode(x=x, y=y, text="text:N", color=colour)
    )
    chart: alt.LayerChart = (tiles + numbers).properties(
        width=760, height=165, title=alt.TitleParams(title, fontSize=14, anchor="start")
    )
    return chart
