"""Signal propagation: maps over position and xi, and lines over position."""

from __future__ import annotations

import altair as alt
import pandas as pd

from .figure_page import BLACK, BLUE, SEAMLESS, VERMILLION, Drawing, heading


def propagation_map(table: pd.DataFrame) -> Drawing:
    """`table` has form, eta, xi, theta and rho on a grid; rows of panels are forms, columns are eta."""
    half_xi, half_theta = (
        SEAMLESS * float(pd.Series(table[name].unique()).sort_values().diff().median()) / 2 for name in ("xi", "theta")
    )
    table = table.assign(
        left=table["xi"] - half_xi,
        right=table["xi"] + half_xi,
        low=table["theta"] - half_theta,
        top=table["theta"] + half_theta,
    )
    panel = (
        alt.Chart(table)
        .mark_rect(clip=True)
        .encode(
            x=alt.X("left:Q", title="ξ", scale=alt.Scale(nice=False), axis=alt.Axis(values=[-10, -5, 0, 5, 10])),
            x2="right:Q",
            y=alt.Y("low:Q", title="position θ", scale=alt.Scale(domain=[0, 1], nice=False)),
            y2="top:Q",
            color=alt.Color(
                "rho:Q",
                title="ρ",
                scale=alt.Scale(scheme="viridis", domain=[0, 1]),
                legend=alt.Legend(gradientLength=200),
            ),
            tooltip=["form:N", *(alt.Tooltip(f"{name}:Q", format=".3g") for name in ("eta", "xi", "theta", "rho"))],
        )
        .properties(width=190, height=190)
    )
    chart: Drawing = panel.facet(
        column=alt.Column("eta:N", title="η", header=alt.Header(titleFontSize=13, labelFontSize=12)),
        row=alt.Row("form:N", title=None, sort=list(table["form"].unique()), header=alt.Header(labelFontSize=13)),
        title=heading(
            "Which positions propagate",
            "ρ(θ), the probability that a token's signal propagates; late tokens at the top",
        ),
    )
    return chart


def propagation_lines(table: pd.DataFrame) -> Drawing:
    """`table` has view, xi, r, form, theta and rho; columns of panels are xi, rows are views."""
    forms = list(table["form"].unique())
    table = table.assign(panel="ξ = " + table["xi"].map("{:g}".format) + ", ξη = " + table["r"].map("{:g}".format))
    panels = list(table["panel"].unique())
    rows = []
    for view in table["view"].unique():
        rows.append(alt.hconcat(*(_lines(table, view, panel, forms) for panel in panels)))
    chart: Drawing = alt.vconcat(
        *rows,
        title=heading("Propagation near the limit of Lemma 2", "corrected and as printed; the limit is a box"),
    )
    return chart


def _lines(table: pd.DataFrame, view: str, panel: str, forms: list[str]) -> alt.Chart:
    own = table[(table["view"] == view) & (table["panel"] == panel)]
    chart: alt.Chart = (
        alt.Chart(own, title=f"{panel}: {view}")
        .mark_line(strokeWidth=2.2)
        .encode(
            x=alt.X("theta:Q", title="position θ", scale=alt.Scale(nice=False, zero=False)),
            y=alt.Y("rho:Q", title="ρ", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color(
                "form:N",
                sort=forms,
                scale=alt.Scale(domain=forms, range=[BLUE, VERMILLION, BLACK]),
                legend=alt.Legend(title=None, symbolStrokeWidth=3, labelFontSize=12),
            ),
            strokeDash=alt.StrokeDash(
                "form:N", sort=forms, scale=alt.Scale(domain=forms, range=[[1, 0], [6, 3], [2, 2]])
            ),
            tooltip=["form:N", alt.Tooltip("theta:Q", format=".4f"), alt.Tooltip("rho:Q", format=".3f")],
        )
        .properties(width=330, height=180)
    )
    return chart
