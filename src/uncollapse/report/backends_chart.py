"""What each backend keeps, by length; and its error, by depth and keep."""

from __future__ import annotations

import altair as alt
import pandas as pd

from .theme import OKABE_ITO


def keeps_chart(table: pd.DataFrame, free_gb: float = 24.0) -> alt.LayerChart:
    """Columns name, length, gb: one line per backend on logarithmic axes, and a rule at the memory of a machine."""
    names = list(table["name"].unique())
    lines = (
        alt.Chart(table)
        .mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(filled=True, size=60))
        .encode(
            x=alt.X("length:O", title="tokens", axis=alt.Axis(labelAngle=0, format=",")),
            y=alt.Y(
                "gb:Q",
                title="gigabytes beyond SDPA's",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(values=[0.01, 0.1, 1, 10, 100], format="~g"),
            ),
            color=_colour(names),
        )
    )
    rule = alt.Chart(pd.DataFrame({"gb": [free_gb]})).mark_rule(strokeDash=[4, 4], color="#5b6270").encode(y="gb:Q")
    title = alt.TitleParams(
        "What each backend keeps in training",
        subtitle=[
            "12 layers, 12 heads of size 64, causal, one sequence. carried: a score matrix for each layer;",
            f"reversible: two for all; stacked: none, only past queries and keys. Dashed: {free_gb:g} GB.",
        ],
        anchor="start",
    )
    chart: alt.LayerChart = (rule + lines).properties(width=560, height=320, title=title)
    return chart


def errors_chart(table: pd.DataFrame) -> alt.FacetChart:
    """Columns name, depth, keep, gradient: one panel per keep, one line per backend."""
    names = list(table["name"].unique())
    chart: alt.FacetChart = (
        alt.Chart(table)
        .mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(filled=True, size=50))
        .encode(
            x=alt.X("depth:O", title="layers", axis=alt.Axis(labelAngle=0)),
            y=alt.Y(
                "gradient:Q",
                title="relative error of gradients",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format="~e"),
            ),
            color=_colour(names),
        )
        .properties(width=150, height=240)
        .facet(column=alt.Column("keep:O", title="keep, the weight of the inherited scores"))
    )
    return chart


def _colour(names: list[str]) -> alt.Color:
    scale = alt.Scale(domain=names, range=OKABE_ITO[: len(names)])
    return alt.Color("name:N", scale=scale, sort=names, legend=alt.Legend(title="backend", labelLimit=300))
