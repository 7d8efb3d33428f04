"""The residual by depth and its bounds, one panel per network."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from .figure_page import BLACK, BLUE, ORANGE, SKY, VERMILLION, Drawing, heading

LOWEST = -60.0  # the smallest power of ten shown; curves are clipped below
Style = tuple[str, list[int]]  # colour and dashes of a curve
STYLES: list[Style] = [
    (BLACK, [1, 0]),
    (VERMILLION, [6, 4]),
    (BLUE, [1, 0]),
    (ORANGE, [6, 4]),
    (SKY, [1, 0]),
]


def bounds_chart(table: pd.DataFrame) -> Drawing:
    """`table` has network, depth, curve and mean (a power of ten); five curves, the measured one first."""
    panels = _panels(table, list(table["curve"].unique()), STYLES, "residual, (1, ∞) norm", 2.0)
    chart: Drawing = alt.hconcat(
        *panels,
        title=heading(
            "How alike tokens become, and what can be proved about it",
            "residual of attention-only networks at initialisation; mean of log10 over the seeds",
        ),
    )
    return chart


def contraction_chart(table: pd.DataFrame, curves: Sequence[str]) -> Drawing:
    """The same columns; what is left of the residual, the bound from the attention, the bound from the weights."""
    styles: list[Style] = [(BLACK, [1, 0]), (BLUE, [1, 0]), (VERMILLION, [6, 4])]
    panels = _panels(table, curves, styles, "share of the input's residual", float(table["mean"].max()) + 1.0)
    chart: Drawing = alt.hconcat(
        *panels,
        title=heading(
            "A bound from the attention matrices follows the residual; one from the weights does not",
            "attention-only networks at initialisation; mean of log10 over the seeds",
        ),
    )
    return chart


def _panels(
    table: pd.DataFrame, curves: Sequence[str], styles: Sequence[Style], title: str, highest: float
) -> list[alt.LayerChart]:
    """One panel per network; the first curve has dots."""
    shown = table.assign(value=10.0 ** table["mean"])
    domain = list(curves)
    colour = alt.Color(
        "curve:N",
        sort=domain,
        scale=alt.Scale(domain=domain, range=[style[0] for style in styles]),
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
                title=title,
                scale=alt.Scale(type="log", domain=[10.0 ** _floor(own), 10.0**highest]),
                axis=alt.Axis(format="~e", tickCount=7),
            ),
            color=colour,
            tooltip=["network:N", "curve:N", "depth:Q", alt.Tooltip("value:Q", format=".2e")],
        )
        lines = base.mark_line(strokeWidth=2.2, clip=True).encode(
            strokeDash=alt.StrokeDash(
                "curve:N", sort=domain, scale=alt.Scale(domain=domain, range=[style[1] for style in styles])
            )
        )
        dots = base.transform_filter(alt.datum.curve == domain[0]).mark_point(
            filled=True, size=45, opacity=1, clip=True
        )
        panels.append((lines + dots).properties(width=270, height=280, title=str(network)))
    return panels


def _floor(own: pd.DataFrame) -> float:
    return max(LOWEST, float(own["mean"].min()) - 1.0)


def _whole() -> alt.Axis:
    axis: alt.Axis = alt.Axis(tickMinStep=1, format="d")
    return axis
