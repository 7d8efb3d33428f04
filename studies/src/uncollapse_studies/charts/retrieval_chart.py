"""Retrieval by a Hopfield network: the state as images, its overlaps and its energy over time."""

from __future__ import annotations

import altair as alt
import pandas as pd

from .figure_page import BLUE, GREEN, VERMILLION, Drawing, heading

SIZE = 96  # pixels of an image and height of a row


def retrieval_chart(courses: pd.DataFrame, pixels: pd.DataFrame) -> Drawing:
    """`courses` has cue, time, quantity, value; `pixels` has cue, time, row, column, ink."""
    cues = list(courses["cue"].unique())
    rows = [_row(courses[courses["cue"] == cue], pixels[pixels["cue"] == cue], cue, cue == cues[-1]) for cue in cues]
    chart: Drawing = alt.vconcat(
        *rows,
        title=heading(
            "A continuous Hopfield network retrieves digits from noise",
            "state at six times (in units of the visible time constant), overlap with patterns, energy",
        ),
    ).resolve_scale(color="independent")
    return chart


def _row(courses: pd.DataFrame, pixels: pd.DataFrame, cue: int, last: bool) -> alt.HConcatChart:
    images = [
        alt.Chart(own, title=f"t = {time:g}")
        .mark_rect()
        .encode(
            x=alt.X("column:O", axis=None),
            y=alt.Y("row:O", axis=None),
            color=alt.Color("ink:Q", scale=alt.Scale(scheme="greys", domain=[0, 1]), legend=None),
        )
        .properties(width=SIZE, height=SIZE)
        for time, own in pixels.groupby("time")
    ]
    overlaps = courses[courses["quantity"] != "energy"]
    names = list(overlaps["quantity"].unique())
    colour = alt.Color(
        "quantity:N",
        sort=names,
        scale=alt.Scale(domain=names, range=[BLUE, VERMILLION]),
        legend=alt.Legend(title=None, orient="bottom", labelLimit=220) if last else None,
    )
    dash = alt.StrokeDash("quantity:N", sort=names, legend=None, scale=alt.Scale(domain=names, range=[[1, 0], [5, 3]]))
    lines = (
        alt.Chart(overlaps, title=f"digit {cue}: overlap")
        .mark_line(strokeWidth=2.2)
        .encode(
            x=alt.X("time:Q", title="time"),
            y=alt.Y("value:Q", title="cosine", scale=alt.Scale(domain=[0, 1], clamp=True)),
            color=colour,
            strokeDash=dash,
            tooltip=["quantity:N", alt.Tooltip("time:Q", format=".2f"), alt.Tooltip("value:Q", format=".3f")],
        )
        .properties(width=200, height=SIZE)
    )
    energy = (
        alt.Chart(courses[courses["quantity"] == "energy"], title="energy")
        .mark_line(strokeWidth=2.2, color=GREEN)
        .encode(
            x=alt.X("time:Q", title="time"),
            y=alt.Y("value:Q", title="energy", scale=alt.Scale(zero=False)),
            tooltip=[alt.Tooltip("time:Q", format=".2f"), alt.Tooltip("value:Q", format=".4f")],
        )
        .properties(width=170, height=SIZE)
    )
    chart: alt.HConcatChart = alt.hconcat(*images, lines, energy).resolve_scale(color="independent")
    return chart
