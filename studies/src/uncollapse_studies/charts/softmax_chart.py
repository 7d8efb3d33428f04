"""Softmax and its piecewise-linear form: two surfaces and a cut through both."""

from __future__ import annotations

import altair as alt
import pandas as pd

from .figure_page import BLACK, SEAMLESS, VERMILLION, Drawing, heading


def softmax_chart(table: pd.DataFrame) -> Drawing:
    """`table` has w1, w2, function (two names) and value."""
    names = list(table["function"].unique())
    maps = [_surface(table[table["function"] == name], name) for name in names]
    section = table[table["w2"].abs() < 1e-9]
    lines = (
        alt.Chart(section, title="cut at w2 = 0")
        .mark_line(strokeWidth=2.5)
        .encode(
            x=alt.X("w1:Q", title="w1"),
            y=alt.Y("value:Q", title="weight of token 1", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color(
                "function:N",
                sort=names,
                scale=alt.Scale(domain=names, range=[BLACK, VERMILLION]),
                legend=alt.Legend(title=None, orient="bottom", labelLimit=300),
            ),
            strokeDash=alt.StrokeDash(
                "function:N", sort=names, legend=None, scale=alt.Scale(domain=names, range=[[1, 0], [6, 3]])
            ),
            tooltip=["function:N", alt.Tooltip("w1:Q", format=".2f"), alt.Tooltip("value:Q", format=".3f")],
        )
        .properties(width=260, height=240)
    )
    title = heading("Softmax and its piecewise-linear form", "the weight of the first of two tokens with scores w1, w2")
    chart: Drawing = alt.hconcat(*maps, lines, title=title).resolve_scale(color="independent")
    return chart


def _surface(table: pd.DataFrame, name: str) -> alt.Chart:
    half = SEAMLESS * float(pd.Series(table["w1"].unique()).sort_values().diff().median()) / 2
    table = table.assign(
        left=table["w1"] - half, right=table["w1"] + half, low=table["w2"] - half, top=table["w2"] + half
    )
    chart: alt.Chart = (
        alt.Chart(table, title=name)
        .mark_rect()
        .encode(
            x=alt.X("left:Q", title="w1", scale=alt.Scale(nice=False)),
            x2="right:Q",
            y=alt.Y("low:Q", title="w2", scale=alt.Scale(nice=False)),
            y2="top:Q",
            color=alt.Color(
                "value:Q",
                scale=alt.Scale(scheme="viridis", domain=[0, 1]),
                legend=alt.Legend(title="weight", orient="bottom", gradientLength=200),
            ),
            tooltip=[alt.Tooltip(f"{column}:Q", format=".2f") for column in ("w1", "w2", "value")],
        )
        .properties(width=240, height=240)
    )
    return chart
