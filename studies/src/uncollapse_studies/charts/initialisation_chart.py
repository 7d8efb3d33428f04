"""Chart of networks at initialisation: one row per network, one column per quantity, lines by method."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from uncollapse.report.theme import OKABE_ITO

from .figure_page import Drawing, heading
from .trained_charts import decades

LOGARITHMIC = ("size", "block_share")
SMALLEST_SHARE = 1e-7  # below, a share is the rounding of a cosine


def initialisation_chart(table: pd.DataFrame, quantities: Mapping[str, str], title: str) -> Drawing:
    """Columns network, method, source (measured or computed), layer, and one for each quantity."""
    rows = [
        alt.hconcat(*(_panel(own, quantity, f"{network}: {words}") for quantity, words in quantities.items()))
        for network, own in table.groupby("network", sort=False)
    ]
    chart: Drawing = alt.vconcat(*rows, title=heading(title, "dots: measured; lines: computed, where it is analytic"))
    return chart


def _panel(table: pd.DataFrame, quantity: str, title: str) -> alt.LayerChart:
    names = list(dict.fromkeys(table["method"]))
    own = table[["method", "source", "layer", quantity]].dropna().rename(columns={quantity: "value"})
    if quantity in LOGARITHMIC:
        own = own[own["value"] > SMALLEST_SHARE]
    scale, axis = alt.Scale(zero=False), alt.Axis(tickCount=5, format="~g")
    if quantity in LOGARITHMIC:
        scale = alt.Scale(type="log")
        axis = alt.Axis(values=decades(own["value"].min(), own["value"].max()), format="~g")
    base = alt.Chart(own).encode(
        x=alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("value:Q", title=None, scale=scale, axis=axis),
        color=alt.Color(
            "method:N", sort=names, scale=alt.Scale(domain=names, range=OKABE_ITO[: len(names)]), title=None
        ),
        tooltip=["method:N", "source:N", "layer:Q", alt.Tooltip("value:Q", format=".3g")],
    )
    lines = base.transform_filter("datum.source === 'computed'").mark_line(strokeWidth=2)
    dots = base.transform_filter("datum.source === 'measured'").mark_point(filled=True, size=50, opacity=0.9)
    chart: alt.LayerChart = (lines + dots).properties(width=190, height=170, title=title)
    return chart
