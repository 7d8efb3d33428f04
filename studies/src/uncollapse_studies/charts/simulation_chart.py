"""Simulated propagation by position beside the closed forms, and the entropy below."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from .figure_page import BLACK, BLUE, GREEN, ORANGE, VERMILLION, Drawing, heading


def simulation_chart(table: pd.DataFrame, shown: Sequence[tuple[float, float]], largest_entropy: float) -> Drawing:
    """`table` has covariance, mean, scale, quantity, source, theta, value, low, high; `shown` are (mean, scale)."""
    chart: Drawing = alt.vconcat(
        _propagation(table, shown),
        _entropy(table, largest_entropy),
        title=heading(
            "Signal propagation and entropy of random walks",
            "eigenvalues of W_QK are drawn from N(mean, scale²); the closed forms use the traces of the same draws",
        ),
    ).resolve_scale(color="independent", shape="independent", strokeDash="independent")
    return chart


def _propagation(table: pd.DataFrame, shown: Sequence[tuple[float, float]]) -> alt.VConcatChart:
    rho = table[table["quantity"] == "rho"]
    sources = list(rho["source"].unique())
    legend = alt.Legend(
        title=None,
        orient="top",
        labelFontSize=12,
        symbolType="stroke",
        symbolStrokeWidth=3,
        symbolOpacity=1,
        symbolSize=300,
    )
    rows = []
    for covariance in rho["covariance"].unique():
        panels = []
        for mean, scale in shown:
            own = rho[(rho["covariance"] == covariance) & (rho["mean"] == mean) & (rho["scale"] == scale)]
            base = alt.Chart(own).encode(
                x=alt.X("theta:Q", title="position θ"),
                color=alt.Color(
                    "source:N",
                    sort=sources,
                    scale=alt.Scale(domain=sources, range=[BLACK, BLUE, VERMILLION]),
                    legend=legend,
                ),
            )
            y = alt.Y("value:Q", title="propagation ρ", scale=alt.Scale(domain=[0, 1]))
            band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title="propagation ρ"), y2="high:Q")
            lines = base.mark_line(strokeWidth=2).encode(
                y=y,
                strokeDash=alt.StrokeDash(
                    "source:N", sort=sources, scale=alt.Scale(domain=sources, range=[[1, 0], [6, 3], [2, 3]])
                ),
                tooltip=["source:N", alt.Tooltip("theta:Q", format=".3f"), alt.Tooltip("value:Q", format=".3f")],
            )
            title = f"{covariance}: mean {mean:g}, scale {scale:g}"
            panels.append((band + lines).properties(width=190, height=150, title=title))
        rows.append(alt.hconcat(*panels))
    chart: alt.VConcatChart = alt.vconcat(*rows)
    return chart


def _entropy(table: pd.DataFrame, largest: float) -> alt.HConcatChart:
    entropies = table[table["quantity"] != "rho"]
    scales = sorted(entropies["scale"].unique())
    panels = []
    for (covariance, quantity), own in entropies.groupby(["covariance", "quantity"], sort=False):
        base = alt.Chart(own).encode(
            x=alt.X("mean:O", title="mean of the eigenvalues", axis=alt.Axis(labelAngle=0)),
            xOffset="scale:N",
            color=alt.Color(
                "scale:N",
                sort=scales,
                scale=alt.Scale(domain=scales, range=[BLUE, ORANGE, GREEN][: len(scales)]),
                legend=alt.Legend(title="scale", labelFontSize=12),
            ),
        )
        y = alt.Y("value:Q", title="entropy (nats)", scale=alt.Scale(domain=[0, 1.05 * largest]))
        points = base.mark_point(filled=True, size=70, opacity=1).encode(
            y=y,
            shape=alt.Shape("scale:N", sort=scales, scale=alt.Scale(domain=scales)),
            tooltip=[alt.Tooltip(f"{name}:Q", format=".3g") for name in ("mean", "scale", "value", "low", "high")],
        )
        bars = base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title="entropy (nats)"), y2="high:Q")
        top = alt.Chart(pd.DataFrame({"y": [largest]})).mark_rule(color=BLACK, strokeDash=[2, 3]).encode(y="y:Q")
        panels.append((bars + points + top).properties(width=190, height=150, title=f"{covariance}: {quantity}"))
    chart: alt.HConcatChart = alt.hconcat(*panels)
    return chart
