"""Early warning: leads by score, and which causes are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import pandas as pd

from ..short_runs.faults import CAUSES
from .figure_page import BLUE, VERMILLION, Drawing, heading

if TYPE_CHECKING:
    from ..warning.findings import Findings

GREY = "#777777"
ALONE, WATCH, TRIED = "what every loop has", "detectors of the watch", "numbers tried"


def warning_chart(found: Findings) -> Drawing:
    """Leads with their intervals on the left, causes and what they were called on the right."""
    title = heading(
        "How early a run that fails can be told, and from what",
        "left: mean lead over runs that failed, 0 without a warning, with 95 % intervals; right: runs by cause",
    )
    chart: Drawing = alt.hconcat(_leads(found), _causes(found), title=title).resolve_scale(color="independent")
    return chart


def _leads(found: Findings) -> alt.LayerChart:
    from ..warning.findings import AIM_LEAD, SHARES
    from ..warning.scores import ALONE as LOOP
    from ..warning.scores import DETECTED

    rows = []
    for share in SHARES:
        for name, own in found.by_score[share].items():
            group = ALONE if name in LOOP else WATCH if name in DETECTED else TRIED
            low, high = (own.mean.low, own.mean.high) if len(own.leads) > 1 else (own.mean.value,) * 2
            rows.append((name, group, f"{share:.0%}", own.mean.value, max(0.0, low), high))
    table = pd.DataFrame(rows, columns=["score", "group", "false alarms", "lead", "low", "high"])
    first = table[table["false alarms"] == f"{SHARES[0]:.0%}"].sort_values("lead", ascending=False)
    y = alt.Y("score:N", sort=first["score"].tolist(), title=None, axis=alt.Axis(labelLimit=200))
    at = alt.YOffset("false alarms:N", sort=[f"{share:.0%}" for share in SHARES])
    base = alt.Chart(table).encode(y=y, yOffset=at)
    colour = alt.Color(
        "group:N",
        scale=alt.Scale(domain=[ALONE, WATCH, TRIED], range=[GREY, VERMILLION, BLUE]),
        legend=alt.Legend(title=None, orient="bottom"),
    )
    shape = alt.Shape("false alarms:N", legend=alt.Legend(orient="bottom"), sort=[f"{share:.0%}" for share in SHARES])
    x = alt.X("low:Q", title="mean lead, share of the run", axis=alt.Axis(format="%"))
    bars = base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q", color=colour)
    tip = ["score:N", "false alarms:N", *(alt.Tooltip(f"{n}:Q", format=".1%") for n in ("lead", "low", "high"))]
    dots = base.mark_point(filled=True, size=55, opacity=1).encode(x="lead:Q", color=colour, shape=shape, tooltip=tip)
    aim = alt.Chart(pd.DataFrame({"lead": [AIM_LEAD]})).mark_rule(strokeDash=[4, 4], color=GREY).encode(x="lead:Q")
    chart: alt.LayerChart = (aim + bars + dots).properties(
        width=330, height=400, title=f"lead, by score; dashed: {AIM_LEAD:.0%}".replace("%", " %")
    )
    return chart


def _causes(found: Findings) -> alt.LayerChart:
    from ..warning.causes import NONE

    table = found.confusion
    x = alt.X("named:N", sort=[*CAUSES, NONE], title="named", axis=alt.Axis(labelAngle=-35))
    base = alt.Chart(table).encode(x=x, y=alt.Y("cause:N", sort=list(CAUSES), title="true cause"))
    cells = base.mark_rect().encode(
        color=alt.Color("runs:Q", scale=alt.Scale(scheme="blues"), legend=None), tooltip=["cause", "named", "runs"]
    )
    dark = float(table["runs"].max()) / 2
    numbers = base.mark_text(fontSize=12).encode(
        text="runs:Q", color=alt.condition(f"datum.runs > {dark}", alt.value("white"), alt.value("#333333"))
    )
    chart: alt.LayerChart = (cells + numbers).properties(width=280, height=400, title="the cause that is named")
    return chart
