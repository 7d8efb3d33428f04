"""Residual ratios by depth: our values as solid lines with their spread, the printed ones dashed."""

from __future__ import annotations

import altair as alt
import pandas as pd

from uncollapse.report.chart import SMALLEST
from uncollapse.report.theme import OKABE_ITO

from .figure_page import BLACK, Drawing, heading
from .trained_charts import GREY, decades, nested_widths

SOLID, DASHED = [1, 0], [6, 4]
STEP = 0.5  # of the nested lines' widths: few of them coincide


def table1_chart(ours: pd.DataFrame, printed: pd.DataFrame, about: str) -> Drawing:
    """Both tables have network, depth and mean, ours also spread; `about` says which networks are shown.

    A band that would reach 0 is cut at a tenth of the mean.
    """
    names, columns = list(ours["network"].unique()), list(printed["network"].unique())
    low = (ours["mean"] - ours["spread"]).clip(lower=ours["mean"] / 10)
    both = pd.concat([ours.assign(low=low, high=ours["mean"] + ours["spread"]), printed])
    both = both.assign(**{name: both[name].clip(lower=SMALLEST) for name in ("mean", "low", "high")})
    colour, width, dash = _looks(names, columns)
    base = alt.Chart(both).encode(x=alt.X("depth:O", title="layers", axis=alt.Axis(labelAngle=0)), color=colour)
    lines = base.mark_line(opacity=1, strokeJoin="round").encode(
        y=_ratio(both),
        strokeWidth=width,
        strokeDash=dash,
        tooltip=["network:N", "depth:O", *(alt.Tooltip(f"{name}:Q", format=".3g") for name in ("mean", "spread"))],
    )
    bands = base.mark_area(opacity=0.15, clip=True).encode(y="low:Q", y2="high:Q")
    subtitle = f"{about}; bands: spread over images and seeds; dashed: the paper's Table 1"
    title = heading("Residual ratio by depth at initialisation", subtitle)
    chart: Drawing = (bands + lines).properties(width=560, height=360, title=title)
    return chart


def _ratio(both: pd.DataFrame) -> alt.Y:
    """A logarithmic axis with one tick per decade that ends above the largest value."""
    top = 1.2 * float(both[["mean", "high"]].max(axis=None))
    ticks = [tick for tick in decades(float(both["mean"].min()), top, most=18) if tick < top]
    scale = alt.Scale(type="log", domain=[ticks[0], top], nice=False)
    return alt.Y("mean:Q", title="residual ratio", scale=scale, axis=alt.Axis(values=ticks, format="~e"))


def _looks(names: list[str], columns: list[str]) -> tuple[alt.Color, alt.StrokeWidth, alt.StrokeDash]:
    """Colour, width and dash of each line in one legend: our lines nested and solid, the printed ones dashed."""
    domain = [*names, *columns]
    legend = alt.Legend(title=None, symbolType="stroke", symbolSize=600, symbolOpacity=1, labelLimit=300)
    colours = alt.Scale(domain=domain, range=[*OKABE_ITO[: len(names)], GREY, BLACK])
    widths = alt.Scale(type="ordinal", domain=domain, range=[*nested_widths(len(names), STEP), *(2.2 for _ in columns)])
    dashes = alt.Scale(domain=domain, range=[*(SOLID for _ in names), *(DASHED for _ in columns)])
    return (
        alt.Color("network:N", sort=domain, scale=colours, legend=legend),
        alt.StrokeWidth("network:N", sort=domain, scale=widths, legend=legend),
        alt.StrokeDash("network:N", sort=domain, scale=dashes, legend=legend),
    )
