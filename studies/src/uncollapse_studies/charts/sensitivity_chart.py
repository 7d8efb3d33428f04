"""Rate sensitivity: held-out loss of each remedy at each rate as a heat map, and the sensitivity beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import altair as alt
import pandas as pd

from .figure_page import BLUE, VERMILLION, Drawing, heading

if TYPE_CHECKING:
    from ..remedies.rates import RateFinding

GREY = "#777777"
ROW = 21  # pixels
HIGH = 0.6  # of the range of losses: where the text on a cell turns light


def sensitivity_chart(table: pd.DataFrame, found: Mapping[str, Mapping[str, RateFinding]]) -> Drawing:
    """One row of panels for each text."""
    rows = [_row(table[table["text"] == text], own, text) for text, own in found.items() if own]
    title = heading(
        "How much the learning rate matters, by remedy",
        "left: held-out loss, mean over seeds; right: sensitivity, each dot a seed, and the mean; lower is better",
    )
    chart: Drawing = alt.vconcat(*rows, title=title).resolve_scale(color="independent")
    return chart


def _row(runs: pd.DataFrame, found: Mapping[str, RateFinding], text: str) -> alt.HConcatChart:
    order = sorted(found, key=lambda name: found[name].sensitivity.mean)
    own = runs[runs["label"].isin(order)]
    row: alt.HConcatChart = alt.hconcat(_losses(own, order, text), _sensitivities(own, found, order), spacing=14)
    return row


def _losses(runs: pd.DataFrame, order: list[str], text: str) -> alt.LayerChart:
    means = runs.groupby(["label", "rate"], as_index=False)["loss"].mean()
    low, high = float(means["loss"].min()), float(means["loss"].max())
    base = alt.Chart(means).encode(
        x=alt.X("rate:O", title="learning rate", axis=alt.Axis(format="~g", labelAngle=0)),
        y=alt.Y("label:N", sort=order, title=None, axis=alt.Axis(labelLimit=220)),
    )
    cells = base.mark_rect().encode(
        color=alt.Color("loss:Q", title="loss", scale=alt.Scale(scheme="blues", domain=[low, high])),
        tooltip=["label:N", "rate:O", alt.Tooltip("loss:Q", format=".3f")],
    )
    light = alt.condition(f"datum.loss > {low + HIGH * (high - low)}", alt.value("white"), alt.value("black"))
    words = base.mark_text(fontSize=11).encode(text=alt.Text("loss:Q", format=".2f"), color=light)
    chart: alt.LayerChart = (cells + words).properties(width=330, height=ROW * len(order), title=f"loss, {text}")
    return chart


def _sensitivities(runs: pd.DataFrame, found: Mapping[str, RateFinding], order: list[str]) -> alt.LayerChart:
    from ..remedies.rates import sensitivity

    seeds = pd.DataFrame(
        [
            (label, seed, sensitivity(dict(zip(one["rate"], one["loss"], strict=True))))
            for (label, seed), one in runs.groupby(["label", "seed"])
        ],
        columns=["label", "seed", "sensitivity"],
    )
    verdict = {name: "undecided" if own.against is None else own.against.verdict for name, own in found.items()}
    seeds["verdict"] = seeds["label"].map(verdict)
    y = alt.Y("label:N", sort=order, title=None, axis=alt.Axis(labels=False, ticks=False))
    x = alt.X("sensitivity:Q", title="sensitivity", scale=alt.Scale(zero=True))
    colour = alt.Color(
        "verdict:N",
        scale=alt.Scale(domain=["lower", "undecided", "higher"], range=[BLUE, GREY, VERMILLION]),
        legend=alt.Legend(title="against plain"),
    )
    dots = alt.Chart(seeds).mark_point(filled=True, size=28, opacity=0.6).encode(x=x, y=y, color=colour)
    means = alt.Chart(seeds).mark_tick(thickness=2, size=15).encode(x=alt.X("mean(sensitivity):Q"), y=y, color=colour)
    chart: alt.LayerChart = (dots + means).properties(width=230, height=ROW * len(order), title="sensitivity")
    return chart
