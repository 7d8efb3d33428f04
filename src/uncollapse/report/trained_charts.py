"""Charts of trained networks: final numbers and curves by method, a number along a setting, maps of propagation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import altair as alt
import pandas as pd

from .depth_chart import COLOURS
from .figure_page import BLACK, SEAMLESS, Drawing, heading

PALETTE = [*COLOURS, BLACK, "#999999"]


def _colour(names: Sequence[str], legend: bool = True) -> alt.Color:
    return alt.Color(
        "label:N",
        sort=list(names),
        scale=alt.Scale(domain=list(names), range=PALETTE[: len(names)]),
        legend=alt.Legend(title=None, symbolOpacity=1, labelLimit=240) if legend else None,
    )


def method_chart(final: pd.DataFrame, curves: pd.DataFrame, names: Sequence[str], title: str, measure: str) -> Drawing:
    """Final numbers (label, seed, value), a dot a seed, beside curves (label, seed, step, value)."""
    base = alt.Chart(final).encode(
        y=alt.Y("label:N", sort=list(names), title=None, axis=alt.Axis(labelLimit=200)), color=_colour(names, False)
    )
    x = alt.X("value:Q", title=measure, scale=alt.Scale(zero=False))
    dots = base.mark_point(filled=True, size=60, opacity=0.85).encode(
        x=x, tooltip=["label:N", "seed:O", alt.Tooltip("value:Q", format=".4g")]
    )
    means = base.mark_tick(thickness=2.5, size=20).encode(x=alt.X("mean(value):Q", title=measure))
    strip = (means + dots).properties(
        width=300, height=max(150, 28 * len(names) + 10), title="at the end: a dot a seed"
    )
    same = "the same budget and rate for all"
    if curves["step"].nunique() < 2:  # evaluated at the end only: there is no curve
        alone: Drawing = strip.properties(width=460, title=heading(title, f"{same}; a dot a seed"))
        return alone
    lines = (
        alt.Chart(curves)
        .mark_line(strokeWidth=2, point=True)
        .encode(
            x=alt.X("step:Q", title="update"),
            y=alt.Y(
                "mean(value):Q", title=measure, scale=alt.Scale(zero=False, nice=False, type=_scale(curves, measure))
            ),
            color=_colour(names),
            tooltip=["label:N", "step:Q", alt.Tooltip("mean(value):Q", format=".4g")],
        )
        .properties(width=340, height=max(150, 28 * len(names) + 10), title="over training: means of seeds")
    )
    chart: Drawing = alt.hconcat(strip, lines, title=heading(title, same)).resolve_scale(color="independent")
    return chart


def _scale(curves: pd.DataFrame, measure: str) -> Literal["log", "linear"]:
    return "log" if measure.startswith("perplexity") and len(curves) and (curves["value"] > 0).all() else "linear"


def along_chart(table: pd.DataFrame, names: Sequence[str], x_title: str, title: str, measure: str) -> Drawing:
    """A number (value) along a setting (at), a line a label: a panel for ours and one for what is printed (source)."""
    panels = []
    for source, words in {"ours": "ours", "printed": "as printed, on other data"}.items():
        own = table[table["source"] == source]
        base = alt.Chart(own).encode(
            x=alt.X("at:Q", title=x_title, axis=alt.Axis(values=sorted(own["at"].unique().tolist()))),
            y=alt.Y("value:Q", title=measure, scale=alt.Scale(zero=False)),
            color=_colour(names),
            tooltip=["label:N", "at:Q", alt.Tooltip("value:Q", format=".4g")],
        )
        lines = base.mark_line(strokeWidth=2) + base.mark_point(filled=True, size=60, opacity=1)
        panels.append(lines.properties(width=320, height=260, title=words))
    chart: Drawing = alt.hconcat(*panels, title=heading(title, "each panel has its own scale"))
    return chart


def panels_chart(curves: pd.DataFrame, names: Sequence[str], titles: Mapping[str, str], title: str) -> Drawing:
    """A panel a quantity over updates; `curves` has label, seed, quantity, step and value, `titles` the panels."""
    panels = []
    for quantity, words in titles.items():
        own = curves[curves["quantity"] == quantity]
        scale: Literal["symlog", "linear"] = "symlog" if quantity in ("qk_scale", "qk_trace") else "linear"
        panels.append(
            alt.Chart(own)
            .mark_line(strokeWidth=2)
            .encode(
                x=alt.X("step:Q", title="update", axis=alt.Axis(tickCount=4)),
                y=alt.Y("mean(value):Q", title=None, scale=alt.Scale(zero=False, type=scale)),
                color=_colour(names),
                tooltip=["label:N", "step:Q", alt.Tooltip("mean(value):Q", format=".4g")],
            )
            .properties(width=230, height=200, title=words)
        )
    rows = [alt.hconcat(*panels[i : i + 3]) for i in range(0, len(panels), 3)]
    chart: Drawing = alt.vconcat(*rows, title=heading(title, "means of seeds"))
    return chart


def propagation_chart(rho: pd.DataFrame, names: Sequence[str], bins: int, title: str) -> Drawing:
    """Maps of rho by update and position, one a label; `rho` has label, step, position (lower end of a bin), rho."""
    panels = []
    for name in names:
        own = rho[rho["label"] == name]
        panels.append(
            alt.Chart(own.assign(top=own["position"] + SEAMLESS / bins))
            .mark_rect()
            .encode(
                x=alt.X("step:O", title="update", axis=alt.Axis(labelOverlap="parity", labelAngle=0)),
                y=alt.Y("position:Q", title="relative position of the key", scale=alt.Scale(domain=[0, 1])),
                y2="top:Q",
                color=alt.Color("rho:Q", scale=alt.Scale(domain=[0, 1], scheme="viridis"), title="rho"),
                tooltip=["step:O", "position:Q", alt.Tooltip("rho:Q", format=".3f")],
            )
            .properties(width=320, height=220, title=name)
        )
    chart: Drawing = alt.hconcat(*panels, title=heading(title, "yellow: the key's signal arrives; dark: it is lost"))
    return chart
