"""Charts of trained networks: final values and curves by method, a value against a setting, maps of propagation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import altair as alt
import pandas as pd

from uncollapse.report.theme import OKABE_ITO

from .figure_page import BLACK, SEAMLESS, Drawing, heading

PALETTE = [*OKABE_ITO, BLACK, "#999999"]
GREY = "#777777"
THINNEST, STEP = 1.5, 0.75  # widths of nested lines in pixels
LOGARITHMIC = ("qk_scale",)  # panels with a logarithmic axis
TARGETS = {"qk_trace": 1.0}  # panels with a thin rule at this value; LocAteR pulls the trace towards 1
CLOSER = ("perplexity",)  # panels that are drawn a second time, magnified
LATE = 0.6  # share of the updates at which the magnified panel starts
PER_ROW = 3
BUDGET = "the same budget and rate for all"


def nested_widths(count: int, step: float = STEP) -> list[float]:
    """Line widths from thick to thin in drawing order, so that lines that coincide all stay visible.

    >>> nested_widths(3)
    [3.0, 2.25, 1.5]
    """
    return [THINNEST + step * (count - 1 - i) for i in range(count)]


def decades(low: float, high: float, most: int = 8) -> list[float]:
    """At most `most` powers of ten from below `low` to above `high`, as ticks of a logarithmic axis.

    >>> decades(0.02, 30)
    [0.01, 0.1, 1.0, 10.0, 100.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / (most - 1)))
    return [float(f"1e{n}") for n in range(first, last + step, step)]


def _colour(names: Sequence[str], legend: bool = True) -> alt.Color:
    return alt.Color(
        "label:N",
        sort=list(names),
        scale=alt.Scale(domain=list(names), range=PALETTE[: len(names)]),
        legend=alt.Legend(title=None, symbolType="stroke", symbolStrokeWidth=4, symbolOpacity=1, labelLimit=240)
        if legend
        else None,
    )


def _width(names: Sequence[str]) -> alt.StrokeWidth:
    scale = alt.Scale(type="ordinal", domain=list(names), range=nested_widths(len(names)))
    return alt.StrokeWidth("label:N", sort=list(names), scale=scale, legend=None)


def _nested_lines(curves: pd.DataFrame, names: Sequence[str], y: alt.Y, ticks: int) -> alt.LayerChart:
    """Mean over the seeds as nested lines, the first label at the back, with a band from lowest to highest seed."""
    table = curves.groupby(["label", "step"], as_index=False)["value"].agg(["mean", "min", "max"])
    table = table.sort_values(["label", "step"], key=lambda c: c.map(list(names).index) if c.name == "label" else c)
    x = alt.X("step:Q", title="update", axis=alt.Axis(tickCount=ticks), scale=alt.Scale(zero=False, nice=False))
    base = alt.Chart(table).encode(x=x, color=_colour(names))
    band = base.mark_area(opacity=0.15).encode(y=y, y2="max:Q")
    lines = base.mark_line(opacity=1, strokeJoin="round").encode(
        y=alt.Y("mean:Q"),
        strokeWidth=_width(names),
        tooltip=["label:N", "step:Q", *(alt.Tooltip(f"{name}:Q", format=".4g") for name in ("mean", "min", "max"))],
    )
    chart: alt.LayerChart = band + lines
    return chart


def _seeds(curves: pd.DataFrame) -> str:
    """What lines and bands show."""
    return "one seed" if curves["seed"].nunique() < 2 else "lines: means of seeds; bands: lowest to highest seed"


def method_chart(final: pd.DataFrame, curves: pd.DataFrame, names: Sequence[str], title: str, measure: str) -> Drawing:
    """Final values (label, seed, value) with one dot per seed, next to curves (label, seed, step, value).

    The curves are left out if there was a single evaluation.
    """
    base = alt.Chart(final).encode(
        y=alt.Y("label:N", sort=list(names), title=None, axis=alt.Axis(labelLimit=200)), color=_colour(names, False)
    )
    x = alt.X("value:Q", title=measure, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    dots = base.mark_point(filled=True, size=60, opacity=0.85).encode(
        x=x, tooltip=["label:N", "seed:O", alt.Tooltip("value:Q", format=".4g")]
    )
    means = base.mark_tick(thickness=2.5, size=20).encode(x=alt.X("mean(value):Q", title=measure))
    height = max(150, 28 * len(names) + 10)
    strip = (means + dots).properties(width=300, height=height, title="at the end: one dot per seed")
    if curves["step"].nunique() < 2:
        subtitle = f"{BUDGET}; one dot per seed; the axis does not start at 0"
        alone: Drawing = strip.properties(width=460, title=heading(title, subtitle))
        return alone
    scale = alt.Scale(zero=False, nice=False, padding=6, type=_scale(curves, measure))
    y = alt.Y("min:Q", title=measure, scale=scale)
    lines = _nested_lines(curves, names, y, 5).properties(width=340, height=height, title="over training")
    whole = heading(title, f"{BUDGET}; axes do not start at 0; {_seeds(curves)}")
    chart: Drawing = alt.hconcat(strip, lines, title=whole).resolve_scale(color="independent")
    return chart


def rates_chart(table: pd.DataFrame, names: Sequence[str], title: str, measure: str) -> Drawing:
    """A value against the learning rate (label, seed, rate, value): lines of seed 0, one dot per network."""
    base = alt.Chart(table).encode(
        x=alt.X(
            "rate:Q",
            title="learning rate",
            scale=alt.Scale(type="log", base=2, nice=False, padding=12),
            axis=alt.Axis(values=sorted(table["rate"].unique().tolist()), format="g", grid=False),
        ),
        y=alt.Y(
            "value:Q", title=measure, scale=alt.Scale(zero=False, nice=False, type=_scale(table, measure), padding=6)
        ),
        color=_colour(names),
        tooltip=["label:N", "seed:O", "rate:Q", alt.Tooltip("value:Q", format=".4g")],
    )
    lines = base.transform_filter("datum.seed === 0").mark_line(opacity=1).encode(strokeWidth=_width(names))
    chart = (lines + base.mark_point(filled=True, size=45, opacity=0.85)).properties(width=460, height=320)
    whole: Drawing = chart.properties(
        title=heading(title, "lines: seed 0; one dot per network; axes do not start at 0")
    )
    return whole


def _scale(curves: pd.DataFrame, measure: str) -> Literal["log", "linear"]:
    return "log" if measure.startswith("perplexity") and len(curves) and (curves["value"] > 0).all() else "linear"


def along_chart(
    table: pd.DataFrame,
    names: Sequence[str],
    x_title: str,
    title: str,
    measure: str,
    rules: Mapping[str, float] | None = None,
    rule_says: str = "",
) -> Drawing:
    """A value against a setting (`at`), one line per label, with one panel for our values and one for the printed ones.

    `rules` has the position of a dashed horizontal rule by source, and `rule_says` what it means.
    """
    panels = []
    for source, words in {"ours": "ours", "printed": "as printed"}.items():
        own = table[table["source"] == source]
        ticks = alt.Axis(values=sorted(own["at"].unique().tolist()), labelExpr="datum.value")
        y = alt.Y("value:Q", title=measure, scale=alt.Scale(zero=False))
        base = alt.Chart(own).encode(
            x=alt.X("at:Q", title=x_title, axis=ticks),
            y=y,
            color=_colour(names),
            tooltip=["label:N", "at:Q", alt.Tooltip("value:Q", format=".4g")],
        )
        chart = base.mark_line(strokeWidth=2) + base.mark_point(filled=True, size=60, opacity=1)
        if rules is not None and source in rules:
            rule = alt.Chart(pd.DataFrame({"value": [rules[source]]})).encode(y=y)
            chart = rule.mark_rule(strokeDash=[6, 4], strokeWidth=1.5, color=GREY) + chart
            words = f"{words}; dashed: {rule_says}, {rules[source]:g}"
        panels.append(chart.properties(width=320, height=260, title=words))
    both: Drawing = alt.hconcat(*panels, title=heading(title, "each panel has its own scale"))
    return both


def panels_chart(curves: pd.DataFrame, names: Sequence[str], titles: Mapping[str, str], title: str) -> Drawing:
    """One panel per quantity; `curves` has label, seed, quantity, step and value, `titles` has the panels.

    Values of 0 are left out of a logarithmic panel. Quantities in CLOSER have a second panel for the last updates.
    """
    panels = []
    for quantity, words in titles.items():
        own = curves[curves["quantity"] == quantity]
        panels.append(_quantity(own, names, quantity, words))
        late = own[own["step"] >= LATE * own["step"].max()]
        if quantity in CLOSER and late["step"].nunique() > 1:
            panels.append(_quantity(late, names, quantity, f"{words}, magnified"))
    rows = [alt.hconcat(*panels[i : i + PER_ROW]) for i in range(0, len(panels), PER_ROW)]
    chart: Drawing = alt.vconcat(*rows, title=heading(title, f"{_seeds(curves)}; thin lines lie upon thick ones"))
    return chart


def _quantity(own: pd.DataFrame, names: Sequence[str], quantity: str, words: str) -> alt.LayerChart:
    """One panel."""
    y = alt.Y("min:Q", title=None, scale=alt.Scale(zero=False))
    positive = own[own["value"] > 0]
    if quantity in LOGARITHMIC and len(positive):
        ticks = decades(positive["value"].min(), positive["value"].max())
        scale = alt.Scale(type="log", domain=[ticks[0], ticks[-1]], nice=False)
        own, y = positive, alt.Y("min:Q", title=None, scale=scale, axis=alt.Axis(values=ticks, format="~e"))
    chart = _nested_lines(own, names, y, 3)
    if quantity in TARGETS:
        target = alt.Chart(pd.DataFrame({"value": [TARGETS[quantity]]}))
        chart += target.mark_rule(color=GREY, strokeWidth=1, strokeDash=[3, 3]).encode(y="value:Q")
    panel: alt.LayerChart = chart.properties(width=270, height=230, title=words)
    return panel


def propagation_chart(rho: pd.DataFrame, names: Sequence[str], bins: int, title: str) -> Drawing:
    """One map of rho per label, by update and position; `rho` has label, step, position (lower edge of a bin), rho."""
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
