"""Time relative to SDPA by length, one line per implementation of attention."""

from __future__ import annotations

import altair as alt
import pandas as pd

from .theme import OKABE_ITO

COLOURS = [*OKABE_ITO, "#6A3D9A", "#7A7A7A", "#3B3B3B"]  # as many as there are implementations to compare


def bench_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """One panel per pass: `ratio` over `length` on a logarithmic axis, coloured by `name`, with a rule at 1.

    Causal lengths are joined by lines, the others are single points. Rows without a ratio and the rows of the baseline
    itself are left out.
    """
    table = table[(table["group"] == "attention") & table["ratio"].notna() & (table["name"] != table["against"])]
    table = table.assign(tokens=[_tokens(row["length"], row["causal"]) for _, row in table.iterrows()])
    names = list(table["name"].unique())
    order = [_tokens(length, False) for length in sorted(table.loc[~table["causal"].astype(bool), "length"].unique())]
    order += [_tokens(length, True) for length in sorted(table.loc[table["causal"].astype(bool), "length"].unique())]
    low, high = min(0.5, table["ratio"].min() / 1.2), max(2.0, table["ratio"].max() * 1.2)
    panels = [_panel(part, str(work), names, order, (low, high)) for work, part in table.groupby("work", sort=False)]
    title = alt.TitleParams(
        "What a stack of 12 attention layers costs, against torch's SDPA",
        subtitle="time in units of SDPA's, best of interleaved rounds; below the line at 1: faster than SDPA",
        anchor="start",
    )
    chart: alt.HConcatChart = alt.hconcat(*panels, title=title)
    return chart


def _panel(
    table: pd.DataFrame, work: str, names: list[str], order: list[str], span: tuple[float, float]
) -> alt.LayerChart:
    scale = alt.Scale(type="log", domain=list(span), nice=False)
    ticks = [t for t in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 12, 20, 50) if span[0] <= t <= span[1]]
    colour = alt.Color(
        "name:N",
        scale=alt.Scale(domain=names, range=COLOURS[: len(names)]),
        sort=names,
        legend=alt.Legend(title="attention", symbolOpacity=1, symbolSize=120, labelFontSize=12, labelLimit=300),
    )
    base = alt.Chart(table).encode(
        x=alt.X("tokens:O", title="tokens", sort=order, axis=alt.Axis(labelAngle=0), scale=alt.Scale(domain=order)),
        y=alt.Y("ratio:Q", title="time / SDPA's", scale=scale, axis=alt.Axis(values=ticks, format="~g")),
        color=colour,
    )
    lines = base.transform_filter("datum.causal").mark_line(strokeWidth=2.5)
    points = base.mark_point(filled=True, opacity=1, size=70).encode(
        shape=alt.Shape("name:N", sort=names, scale=alt.Scale(domain=names)),
        tooltip=[
            alt.Tooltip("name:N", title="attention"),
            alt.Tooltip("shape:N"),
            alt.Tooltip("ratio:Q", title="time / SDPA's", format=".2f"),
            alt.Tooltip("seconds:Q", format=".3g"),
            alt.Tooltip("peak_mb:Q", title="peak memory, MB", format=".0f"),
        ],
    )
    rule = alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="#5b6270", strokeDash=[4, 4]).encode(y="one:Q")
    panel: alt.LayerChart = (rule + lines + points).properties(width=330, height=340, title=work)
    return panel


def _tokens(length: int, causal: bool) -> str:
    return f"{length:,}" if causal else f"{length:,} (no mask)"
