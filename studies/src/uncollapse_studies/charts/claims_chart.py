"""Charts of the audit: a small chart for a claim, and the overview with one square per claim, by outcome and root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from uncollapse.report.chart import Chart, Spec

from ..audit.claim import FAILS
from ..audit.roots import COUNTED, KIND_TITLES
from .figure_page import Drawing
from .formula import readable

WIDTH, HEIGHT = 300, 150
# by outcome, in display order: what the papers got right comes first
COLOURS = {
    "holds": "#009E73",
    "holds under a condition": "#56B4E9",
    "fails": "#D55E00",
    "depends on a reading": "#CC79A7",
    "not the paper's own statement": "#A78BC4",
    "not reproduced at small scale": "#C9A227",
    "cannot be checked at this scale": "#7A8090",
    "pending": "#C3C8D2",
    "error": "#000000",
}
TITLE = "The audit of two papers, preprint and appendix"
PICTURE, INDENT, FIRST, STEP, LINE = 860, 22, 250, 16, 20  # pixels of the overview
MOST_OF_A_ROOT = 6  # squares that a root has room for
PLURAL = {
    "holds": "hold",
    "holds under a condition": "hold under a condition",
    "fails": "fail",
    "depends on a reading": "depend on a reading",
    "not the paper's own statement": "not the paper's own statements",
}
LONGEST = (PICTURE - FIRST) // STEP  # squares in a line


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


def overview_chart(record: Mapping[str, Any]) -> Drawing:
    """One square per claim: a line for each outcome, and what fails by its roots."""
    panels = []
    for paper, about in record["papers"].items():
        own = [row for row in record["claims"] if row["paper"] == paper]
        roots = [root for root in record["roots"] if root["paper"] == paper]
        if own:
            panels.append(_panel(_lines(own, roots), f"{about['authors']}: {len(own)} entries"))
    said = record["headline"].replace(": ", ":\n").split("\n")
    title = alt.TitleParams(TITLE, subtitle=said, anchor="start", fontSize=17, subtitleFontSize=13, offset=14)
    chart: Drawing = alt.vconcat(*panels, spacing=18, title=title).configure_view(stroke=None)
    return chart


@dataclass(frozen=True)
class OverviewLine:
    """A line of the overview: words, and the claims whose squares stand behind them."""

    words: str
    rows: Sequence[Mapping[str, Any]] = ()
    level: int = 0  # 0: an outcome, 1: a kind of root, 2: a root


def _lines(rows: Sequence[Mapping[str, Any]], roots: Sequence[Mapping[str, Any]]) -> list[OverviewLine]:
    lines = []
    for outcome in COLOURS:
        group = [row for row in rows if row["outcome"] == outcome]
        if not group:
            continue
        if outcome != FAILS:
            words = f"{len(group)} {outcome if len(group) == 1 else PLURAL.get(outcome, outcome)}"
            starts = range(0, len(group), LONGEST)
            lines += [OverviewLine(words * (n == 0), group[n : n + LONGEST]) for n in starts]
            continue
        by_id = {row["id"]: row for row in group}
        lines.append(OverviewLine(f"{len(group)} {outcome if len(group) == 1 else PLURAL[outcome]} as printed"))
        for kind in COUNTED:
            found = [root for root in roots if root["kind"] == kind]
            lines += [OverviewLine(f"{len(found)} {KIND_TITLES[kind]}:", level=1)] if found else []
            lines += [OverviewLine(readable(own["title"]), [by_id[id] for id in own["claims"]], 2) for own in found]
    return lines


def _panel(lines: Sequence[OverviewLine], title: str) -> alt.LayerChart:
    words, squares = [], []
    for number, line in enumerate(lines):
        left = INDENT * line.level + (MOST_OF_A_ROOT * STEP if line.level == 2 else 0)
        first = left - (len(line.rows) - 0.25) * STEP if line.level == 2 else FIRST
        words.append({"y": number, "x": left, "words": line.words, "strong": line.level < 2})
        squares += [
            {"y": number, "x": first + STEP * n, **{name: row[name] for name in ("outcome", "id", "statement")}}
            for n, row in enumerate(line.rows)
        ]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, PICTURE], nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[len(lines) - 0.5, -0.5], nice=False))
    colour = alt.Color("outcome:N", legend=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())))
    tiles = (
        alt.Chart(pd.DataFrame(squares))
        .mark_square(size=170, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=["id:N", "outcome:N", "statement:N"])
    )
    text = alt.Chart(pd.DataFrame(words)).encode(x=x, y=y, text="words:N")
    strong = text.transform_filter("datum.strong").mark_text(align="left", fontSize=13, fontWeight="bold")
    plain = text.transform_filter("!datum.strong").mark_text(align="left", fontSize=12)
    chart: alt.LayerChart = (tiles + strong + plain).properties(
        width=PICTURE, height=LINE * len(lines), title=alt.TitleParams(title, fontSize=15, anchor="start")
    )
    return chart
