"""Residual ratios by depth: ours as solid lines, the printed columns dashed."""

from __future__ import annotations

import altair as alt
import pandas as pd

from .depth_chart import COLOURS
from .figure_page import BLACK, Drawing, heading

GREY = "#777777"


def table1_chart(ours: pd.DataFrame, printed: pd.DataFrame) -> Drawing:
    """Both tables have network, depth and mean."""
    names, columns = list(ours["network"].unique()), list(printed["network"].unique())
    both = pd.concat([ours.assign(source="ours"), printed.assign(source="printed")])
    both = both.assign(mean=both["mean"].clip(lower=1e-17))
    colour = alt.Color(
        "network:N",
        sort=[*names, *columns],
        scale=alt.Scale(domain=[*names, *columns], range=[*COLOURS[: len(names)], GREY, BLACK]),
        legend=alt.Legend(title=None, symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3, labelLimit=300),
    )
    base = alt.Chart(both).encode(
        x=alt.X("depth:O", title="layers", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("mean:Q", title="residual ratio", scale=alt.Scale(type="log"), axis=alt.Axis(format="~e", tickCount=9)),
        color=colour,
        tooltip=["network:N", "source:N", "depth:O", alt.Tooltip("mean:Q", format=".3g")],
    )
    lines = base.mark_line(strokeWidth=2.2).encode(
        strokeDash=alt.StrokeDash(
            "source:N", scale=alt.Scale(domain=["ours", "printed"], range=[[1, 0], [6, 4]]), legend=None
        )
    )
    title = heading("Residual ratio by depth at initialisation", "attention-only ViT-T; dashed: the paper's Table 1")
    chart: Drawing = (lines + base.mark_point(filled=True, size=45, opacity=1)).properties(
        width=560, height=360, title=title
    )
    return chart
