"""Learned weights of inherited scores, by layer and head."""

from __future__ import annotations

import altair as alt
import pandas as pd

from ..cells.hopfield import LEARNED


def learned_chart(values: pd.DataFrame, title: str) -> alt.FacetChart:
    """One panel per start: a dot for each head and seed, a bar for the mean of a layer (label, layer, alpha_hidden)."""
    values = values.assign(start=[float(LEARNED[label]["alpha_hidden"]) for label in values["label"]])
    base = alt.Chart().encode(x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)))
    y = alt.Y("alpha_hidden:Q", title="weight of the inherited scores", scale=alt.Scale(domain=[0, 1]))
    dots = base.mark_point(filled=True, size=35, opacity=0.6).encode(
        y=y, color=alt.Color("seed:O", title="seed"), tooltip=["layer:O", "head:O", "seed:O", "alpha_hidden:Q"]
    )
    means = base.mark_tick(thickness=3, size=22, color="#1f2430").encode(y=alt.Y("mean(alpha_hidden):Q"))
    start = alt.Chart().mark_rule(strokeDash=[4, 4], color="#5b6270").encode(y="mean(start):Q")
    chart: alt.FacetChart = (
        alt.layer(start, dots, means, data=values)
        .properties(width=300, height=260)
        .facet(column=alt.Column("label:N", title=None))
        .properties(title=title)
    )
    return chart
