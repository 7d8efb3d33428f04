"""Retrofits: the held-out loss over the updates after a remedy was put in, one panel a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import pandas as pd

from ..retrofit.plan import CONTROL, RETROFITS
from .figure_page import BLUE, GREEN, PINK, VERMILLION, Drawing, heading

if TYPE_CHECKING:
    from ..retrofit.findings import RetrofitFindings

GREY = "#999999"
COLOURS = {"": GREY, "qk_norm": VERMILLION, "output_gate": GREEN, "sink": BLUE, "hopfield": PINK}
DASHES = ([1, 0], [6, 3], [2, 2])  # of the ways to put one remedy in
LINEAR = 0.01  # the axis is linear up to here and logarithmic beyond: jumps are a hundred times what is left of them
TICKS = [sign * value for sign in (-1, 1) for value in (0.01, 0.03, 0.1, 0.3, 1, 3)]


def retrofit_chart(found: RetrofitFindings) -> Drawing:
    """Means over the seeds as lines, the control thick and grey behind them, bands from lowest to highest seed."""
    panels = [_panel(found.losses, host) for host in found.hosts]
    title = heading(
        "What a remedy does to a model that is trained already",
        "held-out loss less that of the stock model at update 0; lines: means of seeds; bands: lowest to highest seed",
    )
    chart: Drawing = alt.hconcat(*panels, title=title)
    return chart


def _panel(losses: pd.DataFrame, host: str) -> alt.LayerChart:
    own = losses[losses["model"] == host]
    table = own.groupby(["retrofit", "update"], as_index=False, sort=False)["change"].agg(["mean", "min", "max"])
    scale = alt.Scale(type="symlog", constant=LINEAR)
    axis = alt.Axis(values=[0, *TICKS], format="+.2~f")
    base = alt.Chart(table).encode(x=alt.X("update:Q", title="updates since"), color=_colour())
    band = base.mark_area(opacity=0.12).encode(
        y=alt.Y("min:Q", title="change of the loss", scale=scale, axis=axis), y2="max:Q"
    )
    tips = [alt.Tooltip(f"{name}:Q", format="+.4f") for name in ("mean", "min", "max")]
    lines = base.mark_line(strokeJoin="round").encode(
        y=alt.Y("mean:Q", scale=scale, axis=axis),
        strokeDash=_dash(),
        strokeWidth=alt.condition(alt.datum.retrofit == CONTROL, alt.value(6), alt.value(1.8)),
        tooltip=["retrofit:N", "update:Q", *tips],
    )
    chart: alt.LayerChart = (band + lines).properties(width=400, height=380, title=host)
    return chart


def _legend() -> alt.Legend:
    return alt.Legend(
        title=None, symbolType="stroke", symbolStrokeWidth=3, symbolSize=400, symbolOpacity=1, labelLimit=240
    )


def _colour() -> alt.Color:
    domain = [way.label for way in RETROFITS]
    scale = alt.Scale(domain=domain, range=[COLOURS[way.name] for way in RETROFITS])
    return alt.Color("retrofit:N", sort=domain, scale=scale, legend=_legend())


def _dash() -> alt.StrokeDash:
    """The first way to put a remedy in is a whole line."""
    domain = [way.label for way in RETROFITS]
    names = [way.name for way in RETROFITS]
    places = [names[:place].count(name) for place, name in enumerate(names)]
    scale = alt.Scale(domain=domain, range=[DASHES[place] for place in places])
    return alt.StrokeDash("retrofit:N", sort=domain, scale=scale, legend=_legend())
