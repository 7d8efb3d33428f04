"""Networks without residual connections by update and depth, and losses without norms by remedy and rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import pandas as pd

from .figure_page import BLUE, VERMILLION, Drawing, heading
from .trained_charts import GREY, _nested_lines

if TYPE_CHECKING:
    from ..depth.findings import DepthFinding, DepthFindings
    from ..depth.record import DepthCourse

WIDTH, HEIGHT = 250, 250
FEW, BEST = "other rates", "best rate"


def depth_chart(found: DepthFindings) -> Drawing:
    """A row of panels by depth, and below it the networks without norms."""
    from ..depth.plan import GROUPS

    rows: list[Drawing] = []
    for group in GROUPS:
        panels = [_depth(one, list(group)) for one in found.by_depth.values() if set(group) & set(one.methods)]
        if panels:
            rows.append(alt.hconcat(*panels))
    if found.norm_free:
        rows.append(_norm_free(found))
    title = heading(
        "What trains without residual connections, or without norms",
        "above: means of seeds at the best rate, bands from lowest to highest; dashed: what the net with residual "
        "connections ends with; below: one dot per network",
    )
    chart: Drawing = alt.vconcat(*rows, title=title).resolve_scale(color="independent", strokeWidth="independent")
    return chart


def _depth(found: DepthFinding, names: list[str]) -> alt.LayerChart:
    from ..depth.plan import RESIDUAL

    rows = [
        (name, run.seed, int(step), 100 * float(accuracy))
        for name in (RESIDUAL, *names)
        if name in found.methods
        for run in found.methods[name].runs
        for step, accuracy in zip(run.steps, run.accuracies, strict=True)
    ]
    curves = pd.DataFrame(rows, columns=["label", "seed", "step", "value"])
    y = alt.Y("min:Q", title="held-out accuracy in %", scale=alt.Scale(zero=False))
    lines = _nested_lines(curves, [RESIDUAL, *names], y, 4)
    target = alt.Chart(pd.DataFrame({"value": [found.methods[RESIDUAL].accuracy.mean]}))
    rule = target.mark_rule(strokeDash=[4, 4], color=GREY).encode(y="value:Q")
    chart: alt.LayerChart = (rule + lines).properties(width=WIDTH, height=HEIGHT, title=f"{found.layers} layers")
    return chart


def _norm_free(found: DepthFindings) -> alt.LayerChart:
    from ..depth.plan import NORM_FREE

    best = {name: own.rate for name, own in found.norm_free.items()}
    runs = [run for run in found.runs if run.part == NORM_FREE and run.method in best]
    rows = [_dot(run, best[run.method]) for run in runs]
    table = pd.DataFrame(rows, columns=["remedy", "rate", "seed", "loss", "chosen", "diverged"])
    order = sorted(best, key=lambda name: found.norm_free[name].loss.mean)
    base = alt.Chart(table).encode(y=alt.Y("remedy:N", sort=order, title=None, axis=alt.Axis(labelLimit=200)))
    colour = alt.Color(
        "chosen:N",
        scale=alt.Scale(domain=[BEST, FEW], range=[VERMILLION, BLUE]),
        legend=alt.Legend(title=None),
    )
    x = alt.X("loss:Q", title="held-out loss; that of a guess where a network diverged", scale=alt.Scale(zero=False))
    tip = ["remedy", "rate", "seed", alt.Tooltip("loss:Q", format=".3f"), "diverged"]
    dots = base.mark_point(filled=True, size=60, opacity=0.85).encode(x=x, color=colour, tooltip=tip)
    guess = alt.Chart(pd.DataFrame({"loss": [runs[0].guess.loss]}))
    rule = guess.mark_rule(strokeDash=[4, 4], color=GREY).encode(x="loss:Q")
    chart: alt.LayerChart = (rule + dots).properties(
        width=2 * WIDTH,
        height=max(120, 20 * len(order)),
        title=f"{runs[0].layers} layers {NORM_FREE}, under SGD; dashed: a guess",
    )
    return chart


def _dot(run: DepthCourse, best: float) -> tuple[str, str, int, float, str, bool]:
    chosen = BEST if run.rate == best else FEW
    return run.method, f"{run.rate:g}", run.seed, run.last_loss, chosen, run.diverged
