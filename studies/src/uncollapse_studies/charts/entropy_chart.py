"""The lower bound of attention entropy by the size of the scores."""

from __future__ import annotations

import altair as alt
import pandas as pd

from .figure_page import BLACK, BLUE, VERMILLION, Drawing, heading


def entropy_bound_chart(table: pd.DataFrame) -> Drawing:
    """One panel per length; `table` has T, form, nu, bound and log_T."""
    forms = list(table["form"].unique())
    panels = []
    for tokens, own in table.groupby("T"):
        top = float(own["log_T"].iloc[0])
        lines = (
            alt.Chart(own)
            .mark_line(strokeWidth=2.5)
            .encode(
                x=alt.X("nu:Q", title="ν, bound of the scores' norm"),
                y=alt.Y("bound:Q", title="bound of the entropy (nats)"),
                color=alt.Color(
                    "form:N",
                    sort=forms,
                    scale=alt.Scale(domain=forms, range=[BLUE, VERMILLION]),
                    legend=alt.Legend(title=None, orient="bottom", labelLimit=300, labelFontSize=12),
                ),
                strokeDash=alt.StrokeDash("form:N", sort=forms, scale=alt.Scale(domain=forms, range=[[1, 0], [6, 3]])),
                tooltip=["form:N", alt.Tooltip("nu:Q", format=".1f"), alt.Tooltip("bound:Q", format=".3f")],
            )
        )
        largest = alt.Chart(pd.DataFrame({"y": [top], "text": [f"log T = {top:.2f}"], "x": [20.0]}))
        rule = largest.mark_rule(color=BLACK, strokeDash=[2, 3]).encode(y="y:Q")
        label = largest.mark_text(align="right", dy=-7, color=BLACK).encode(x="x:Q", y="y:Q", text="text:N")
        panels.append((lines + rule + label).properties(width=250, height=240, title=f"T = {tokens}"))
    chart: Drawing = alt.hconcat(
        *panels,
        title=heading(
            "A lower bound of attention entropy cannot exceed log T",
            "the least entropy of softmax over T keys when the norm of the scores is at most ν",
        ),
    )
    return chart
