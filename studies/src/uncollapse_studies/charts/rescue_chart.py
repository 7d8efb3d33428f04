"""Rescue: runs that are rescued by branch and by cause, and what a treatment does to healthy runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import pandas as pd

from ..short_runs.faults import CAUSES
from .figure_page import BLUE, VERMILLION, Drawing, heading

if TYPE_CHECKING:
    from ..rescue.findings import RescueFindings

GREY = "#777777"
HEIGHT = 230


def rescue_chart(found: RescueFindings) -> Drawing:
    """Shares that are rescued on the left, the causes in the middle, healthy runs on the right."""
    title = heading(
        "What rescues a run at the first warning",
        "left: share of failing runs that end as well as their healthy twins, with 95 % intervals; middle: by cause; "
        "right: healthy runs treated by mistake",
    )
    chart: Drawing = alt.hconcat(_shares(found), _causes(found), _healthy(found), title=title).resolve_scale(
        color="independent"
    )
    return chart


def _shares(found: RescueFindings) -> alt.LayerChart:
    from ..rescue.findings import AIM

    rows = [
        (name, own.rescued / own.failing if own.failing else 0.0, *own.interval)
        for name, own in found.by_branch.items()
    ]
    table = pd.DataFrame(rows, columns=["branch", "share", "low", "high"])
    return _ranges(table, "share", "rescued, of all failing runs", AIM, "%", BLUE).properties(
        width=230, height=HEIGHT, title=f"rescued; dashed: {AIM:.0%}".replace("%", " %")
    )


def _healthy(found: RescueFindings) -> alt.LayerChart:
    from ..rescue.findings import TREATMENTS
    from ..rescue.judging import HARMED

    rows = []
    for name in TREATMENTS:
        change = found.by_branch[name].change
        low, high = (change.low, change.high) if change.seeds > 1 else (change.value,) * 2
        rows.append((name, change.value, low, high))
    table = pd.DataFrame(rows, columns=["branch", "change", "low", "high"])
    aim = HARMED - 1.0
    return _ranges(table, "change", "mean change of a healthy run's loss", aim, "+.1%", VERMILLION).properties(
        width=230, height=HEIGHT, title=f"healthy runs; dashed: {aim:.0%}".replace("%", " %")
    )


def _ranges(table: pd.DataFrame, value: str, title: str, aim: float, format: str, colour: str) -> alt.LayerChart:
    """Values with their intervals, one line for each branch, and a dashed line at the aim."""
    y = alt.Y("branch:N", sort=table["branch"].tolist(), title=None, axis=alt.Axis(labelLimit=200))
    base = alt.Chart(table).encode(y=y)
    tip = ["branch:N", *(alt.Tooltip(f"{name}:Q", format=".1%") for name in (value, "low", "high"))]
    x = alt.X("low:Q", title=title, axis=alt.Axis(format=format))
    bars = base.mark_rule(strokeWidth=2, color=colour).encode(x=x, x2="high:Q")
    dots = base.mark_point(filled=True, size=60, opacity=1, color=colour).encode(x=f"{value}:Q", tooltip=tip)
    line = alt.Chart(pd.DataFrame({"aim": [aim]})).mark_rule(strokeDash=[4, 4], color=GREY).encode(x="aim:Q")
    chart: alt.LayerChart = line + bars + dots
    return chart


def _causes(found: RescueFindings) -> alt.LayerChart:
    from ..rescue.findings import NAMES

    table = found.by_cause()
    table["share"] = (table["rescued"] / table["failing"].where(table["failing"] > 0)).fillna(0.0)
    table["text"] = [f"{row.rescued} of {row.failing}" for row in table.itertuples()]
    x = alt.X("cause:N", sort=list(CAUSES), title=None, axis=alt.Axis(labelAngle=-35))
    base = alt.Chart(table).encode(x=x, y=alt.Y("branch:N", sort=list(NAMES), title=None, axis=None))
    cells = base.mark_rect().encode(
        color=alt.Color("share:Q", scale=alt.Scale(scheme="blues", domain=[0, 1]), legend=None),
        tooltip=["branch", "cause", "failing", "warned", "rescued"],
    )
    numbers = base.mark_text(fontSize=11).encode(
        text="text:N", color=alt.condition("datum.share > 0.5", alt.value("white"), alt.value("#333333"))
    )
    chart: alt.LayerChart = (cells + numbers).properties(width=360, height=HEIGHT, title="rescued, by cause")
    return chart
