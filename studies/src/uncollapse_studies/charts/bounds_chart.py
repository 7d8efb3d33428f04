"""The residual by depth and its bounds, one panel per network."""

from __future__ import annotations

import altair as alt
import pandas as pd

from .figure_page import BLACK, BLUE, ORANGE, SKY, VERMILLION, Drawing, heading

LOWEST = -60.0  # the smallest power of ten shown; curves are clipped below
STYLES = [(BLACK, [1, 0]), (VERMILLION, [6, 4]), (BLUE, [1, 0]), (ORANGE, [6, 4]), (SKY, [1, 0])]


def bounds_chart(table: pd.DataFrame) -> Drawing:
    """`table` has network, depth, curve and mean (a power of ten); five curves, the measured one first."""
    curves = list(table["curve"].unique())
    shown = table.assign(value=10.0 ** table["mean"])
    colour = alt.Color(
        "curve:N",
        sort=curves,
        scale=alt.Scale(domain=curves, range=[style[0] for style in STYLES]),
        legend=alt.Legend(
            title=None,
            orient="bottom",
            columns=3,
            labelLimit=300,
            labelFontSize=12,
            symbolType="stroke",
            symbolSize=400,
        ),
    )
    panels = []
    for network, own in shown.groupby("network", sort=False):
        base = alt.Chart(own).encode(
            x=alt.X("depth:Q", title="layers", scale=alt.Scale(domain=[1, int(table["depth"].max())]), axis=_whole()),
            y=alt.Y(
                "value:Q",
                title="residual, (1, ∞) norm",
                scale=alt.Scale(type="log", domain=[10.0 ** _floor(own), 100.0]),
                axis=alt.Axis(format="~e", tickCount=7),
            ),
            color=colour,
            tooltip=["network:N", "curve:N", "depth:Q", alt.Tooltip("value:Q", format=".2e")],
        )
        lines = base.mark_line(strokeWidth=2.2, clip=True).encode(
            strokeDash=alt.StrokeDash(
                "curve:N", sort=curves, scale=alt.Scale(domain=curves, range=[style[1] for style in STYLES])
            )
        )
        dots = base.transform_filter(alt.datum.curve == curves[0]).mark_point(
            filled=True, size=45, opacity=1, clip=True
        )
        panels.append((lines + dots).properties(width=270, height=280, title=str(network)))
    chart: Drawing = alt.hconcat(
        *panels,
        title=heading(
            "How alike tokens become, and what can be proved about it",
            "residual of attention-only networks at initialisation; mean of log10 over the seeds",
        ),
    )
    return chart


def _floor(own: pd.DataFrame) -> float:
    return max(LOWEST, float(own["mean"].min()) - 1.0)


def _whole() -> alt.Axis:
    axis: alt.Axis = alt.Axis(tickMinStep=1, format="d")
    return axis
