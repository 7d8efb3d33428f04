"""The residual ratio by depth as lines, one a network."""

from __future__ import annotations

import altair as alt
import pandas as pd

# Okabe and Ito's colours, distinguishable with every common colour blindness.
COLOURS = ["#D55E00", "#E69F00", "#CC79A7", "#56B4E9", "#0072B2", "#009E73"]


def depth_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Lines of `mean` (band: `spread`) over `depth`, coloured by `attention`, on a logarithmic scale."""
    names = list(table["attention"].unique())
    table = table.assign(
        low=(table["mean"] - table["spread"]).clip(lower=table["mean"] / 10),
        high=table["mean"] + table["spread"],
    )
    scale = alt.Scale(type="log", domain=[10.0 ** _floor_exponent(table), 2.0])
    colour = alt.Color(
        "attention:N",
        scale=alt.Scale(domain=names, range=COLOURS[: len(names)]),
        sort=names,
        legend=alt.Legend(title="attention", symbolOpacity=1, symbolSize=120, labelFontSize=12),
    )
    base = alt.Chart(table).encode(x=alt.X("depth:O", title="layers", axis=alt.Axis(labelAngle=0)), color=colour)
    band = base.mark_area(opacity=0.15, clip=True).encode(
        y=alt.Y("low:Q", scale=scale, title="residual ratio", axis=alt.Axis(format="~e", tickCount=9)), y2="high:Q"
    )
    lines = base.mark_line(strokeWidth=2.5, clip=True).encode(
        y=alt.Y("mean:Q", scale=scale),
        strokeDash=alt.StrokeDash("attention:N", sort=names, scale=alt.Scale(domain=names, range=_dashes(len(names)))),
    )
    points = base.mark_point(filled=True, opacity=1, size=60, clip=True).encode(
        y=alt.Y("mean:Q", scale=scale),
        shape=alt.Shape("attention:N", sort=names, scale=alt.Scale(domain=names)),
        tooltip=[
            alt.Tooltip("attention:N"),
            alt.Tooltip("alpha:Q", title="visible skip"),
            alt.Tooltip("keep:Q", title="weight of inherited scores"),
            alt.Tooltip("depth:O", title="layers"),
            alt.Tooltip("mean:Q", title="residual ratio", format=".3g"),
            alt.Tooltip("spread:Q", format=".2g"),
        ],
    )
    title = alt.TitleParams(
        "What keeps tokens apart as attention gets deeper",
        subtitle="1: tokens as different as can be; towards 0: all tokens alike (rank collapse)",
        anchor="start",
    )
    chart: alt.LayerChart = (band + lines + points).properties(width=560, height=360, title=title)
    return chart


def _floor_exponent(table: pd.DataFrame) -> int:
    """The decade just below the smallest value shown, at most that of float64's rounding."""
    smallest = max(float(table["mean"].min()), 1e-17)
    return int(f"{smallest:e}".split("e")[1])


def _dashes(count: int) -> list[list[int]]:
    return [[1, 0] if i % 2 == 0 else [6, 3] for i in range(count)]
