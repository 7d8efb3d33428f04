"""Final numbers: one row per group with a dot for each seed, their mean and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from .chart import Chart, Spec, full_width, parameters, series_colour, tooltip

CAPTION = (
    "A dot is a seed, the tick the mean of the seeds, the bar the 95 % interval of that mean (two seeds or more; cut "
    "off where it is much wider than the dots). Whether two groups differ is said above, from the interval of their "
    "difference."
)
LEAST = 0.002  # of the largest number: half the axis of numbers that are all alike
REACH = 1.0  # how far the axis follows an interval beyond the dots, in widths of what the dots span


@dataclass(frozen=True)
class FinalValues:
    """One measure at the end of training: `seeds` has report, run and value; `means` has report, mean, low and high."""

    title: str
    seeds: pd.DataFrame
    means: pd.DataFrame


def final_strip(values: FinalValues, name: str, names: Sequence[str]) -> Chart:
    """One row per group of `names`, with a dot for each seed."""
    seeds, means = values.seeds, values.means
    colour = series_colour(names)
    if colour:
        colour = {"color": colour["color"] | {"legend": None}}
    x, y = _axes(seeds, means, len(names))
    interval: Spec = {
        "data": {"table": f"{name}-means"},
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "bar", "style": "series", "opacity": 0.25, "height": 9, "tooltip": None, "clip": True},
        "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, "y": y, **colour},
    }
    mean: Spec = {
        "data": {"table": f"{name}-means"},
        "mark": {"type": "tick", "style": "series", "thickness": 2.5, "size": 17, "opacity": 1},
        "encoding": {
            "x": {"field": "mean", **x},
            "y": y,
            "tooltip": tooltip(mean=("mean", ".4~g"), low=("from", ".4~g"), high=("to", ".4~g")),
            **colour,
        },
    }
    tooltips = [{"field": "run", "title": "run", "type": "nominal"}, *tooltip(value=("value", ".4~g"))]
    dots: Spec = {
        "data": {"table": name},
        "mark": {"type": "point", "style": "series", "filled": True, "size": 45, "opacity": 0.85},
        "encoding": {"x": {"field": "value", **x}, "y": y, "tooltip": tooltips, **colour},
    }
    spec: Spec = {
        "title": {"text": values.title},
        "params": parameters(names=list(names)),
        "layer": [*([interval] if means["low"].notna().any() else []), mean, dots],
    }
    tables = {name: seeds, f"{name}-means": means}
    return Chart(name, full_width(spec, height=26 * len(names) + 10), "", tables)


def _axes(seeds: pd.DataFrame, means: pd.DataFrame, groups: int) -> tuple[Spec, Spec]:
    y = {
        "field": "report",
        "type": "ordinal",
        "title": None,
        "scale": {"domain": list(range(1, groups + 1))},
        "axis": {"labelExpr": "names[datum.value - 1]", "labelLimit": 110, "ticks": False, "domain": False},
    }
    dots = seeds["value"]
    reach = REACH * (dots.max() - dots.min())  # two seeds have an interval of nine standard deviations to either side
    ends = pd.concat([means["low"], means["high"]]).clip(dots.min() - reach, dots.max() + reach)
    values = pd.concat([dots, ends]).dropna()
    # The axis spans at least what its four digits can tell apart: numbers closer than that are one number here.
    room = max(0.06 * (values.max() - values.min()), LEAST * values.abs().max()) or 1.0
    x = {
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [float(values.min() - room), float(values.max() + room)], "nice": False, "zero": False},
        "axis": {"tickCount": 4, "format": ".4~g"},
    }
    return x, y
