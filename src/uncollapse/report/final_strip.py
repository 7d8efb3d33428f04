"""Final numbers: a row a group, a dot a seed, the mean and its bootstrap interval."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .chart import Chart, Spec, parameters, series_colour, tooltip, wide

AID = (
    "A dot is a seed, the tick their mean, the bar its 95 % bootstrap interval (three seeds or more). "
    "Where the dots of two groups mix, no difference is shown."
)
LEAST = 0.002  # of the largest number: half the axis of numbers that are all alike


def final_strip(seeds: pd.DataFrame, means: pd.DataFrame, name: str, title: str, names: Sequence[str]) -> Chart:
    """`seeds` has report, run and value; `means` has report, mean, low and high."""
    colour = series_colour(names)
    if colour:
        colour = {"color": colour["color"] | {"legend": None}}
    x, y = _axes(seeds, means, len(names))
    interval: Spec = {
        "data": {"table": f"{name}-means"},
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "bar", "style": "series", "opacity": 0.25, "height": 9, "tooltip": None},
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
    told = [{"field": "run", "title": "run", "type": "nominal"}, *tooltip(value=("value", ".4~g"))]
    dots: Spec = {
        "data": {"table": name},
        "mark": {"type": "point", "style": "series", "filled": True, "size": 45, "opacity": 0.85},
        "encoding": {"x": {"field": "value", **x}, "y": y, "tooltip": told, **colour},
    }
    spec: Spec = {
        "title": {"text": title},
        "params": parameters(names=list(names)),
        "layer": [*([interval] if means["low"].notna().any() else []), mean, dots],
    }
    tables = {name: seeds, f"{name}-means": means}
    return Chart(name, wide(spec, height=26 * len(names) + 10), "", tables)


def _axes(seeds: pd.DataFrame, means: pd.DataFrame, groups: int) -> tuple[Spec, Spec]:
    y = {
        "field": "report",
        "type": "ordinal",
        "title": None,
        "scale": {"domain": list(range(1, groups + 1))},
        "axis": {"labelExpr": "names[datum.value - 1]", "labelLimit": 110, "ticks": False, "domain": False},
    }
    values = pd.concat([seeds["value"], means["low"], means["high"]]).dropna()
    # The axis spans at least what its four digits can tell apart: numbers closer than that are one number here.
    room = max(0.06 * (values.max() - values.min()), LEAST * values.abs().max()) or 1.0
    x = {
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [float(values.min() - room), float(values.max() + room)], "nice": False, "zero": False},
        "axis": {"tickCount": 4, "format": ".4~g"},
    }
    return x, y
