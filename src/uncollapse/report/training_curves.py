"""Measures over training: the mean of the seeds with a band for their spread, and a line for each unfinished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .chart import Chart, Spec, full_width, integer, parameters, series_colour, series_names, series_tooltip, tooltip

CAPTION = (
    "Lines are means over seeds, bands one standard deviation to either side; a dashed line that ends in a cross is a "
    "run that did not finish."
)
FEW = 25  # up to this many steps, each is marked by a point
LEAST = 0.04  # smallest span of the axis relative to the largest value: labels have three digits and would repeat
MEAN = "mean of finished runs"


@dataclass(frozen=True)
class TrainingCurve:
    """One measure over training.

    `table` has report (from 1), run (MEAN for the mean of the seeds, else the name of an unfinished run), step, value,
    low, high and, if the page selects a layer, layer. `ends` are the ends of the axis of values.
    """

    title: str
    table: pd.DataFrame
    logarithmic: bool = False
    ends: tuple[float, float] | None = None


def training_charts(curves: Mapping[str, TrainingCurve], names: Sequence[str]) -> list[Chart]:
    """One chart per curve that has data; `curves` is keyed by the names of the charts, `names` are the groups."""
    return [training_chart(curve, name, names) for name, curve in curves.items() if len(curve.table)]


def training_chart(curve: TrainingCurve, name: str, names: Sequence[str]) -> Chart:
    """One measure over steps, in one colour per group."""
    table = curve.table[np.isfinite(curve.table["value"])]
    by_layer = "layer" in table
    spec = {
        "title": {"text": {"expr": f"'{curve.title}, layer ' + layer"} if by_layer else curve.title},
        "data": {"table": name},
        "params": parameters(names=list(names), **({"layer": 1} if by_layer else {})),
        "transform": [*([{"filter": "datum.layer == layer"}] if by_layer else []), *series_names(names)],
        "layer": _layers(table, names, _y(table, curve.logarithmic, curve.ends)),
    }
    return Chart(name, full_width(spec, height=216), "", {name: table})


def _layers(table: pd.DataFrame, names: Sequence[str], y: Spec) -> list[Spec]:
    """Band, mean, unfinished runs and crosses at their ends; layers without data are left out."""
    colour, x = series_colour(names), _x(table)
    tooltips = [
        *series_tooltip(names),
        {"field": "run", "title": "runs", "type": "nominal"},
        *tooltip(step=integer("step"), value="value", low="mean - spread", high="mean + spread"),
    ]
    encoding = {"x": x, "y": {"field": "value", **y}, "tooltip": tooltips, "detail": {"field": "run"}, **colour}
    band = {"x": x, "y": {"field": "low", **y}, "y2": {"field": "high"}, **colour}
    points = {"filled": True, "size": 28} if table["step"].nunique() <= FEW else False
    layers: list[Spec] = []
    if table["low"].notna().any():
        layers.append(_layer("area", "isValid(datum.low)", band, opacity=0.18, tooltip=None))
    if (table["run"] == MEAN).any():
        layers.append(_layer("line", f"datum.run == '{MEAN}'", encoding, strokeWidth=2, point=points))
    if (table["run"] != MEAN).any():
        others = f"datum.run != '{MEAN}'"
        layers.append(_layer("line", others, encoding, strokeWidth=1.2, strokeDash=[4, 3], opacity=0.9))
        cross = _layer("point", others, encoding, shape="cross", angle=45, filled=True, size=90, opacity=1)
        cross["transform"] += [
            {"joinaggregate": [{"op": "max", "field": "step", "as": "last"}], "groupby": ["run"]},
            {"filter": "datum.step == datum.last"},
        ]
        layers.append(cross)
    return layers


def _layer(kind: str, only: str, encoding: Spec, **mark: object) -> Spec:
    return {
        "transform": [{"filter": only}],
        "mark": {"type": kind, "style": "series", **mark},
        "encoding": encoding,
    }


def _x(table: pd.DataFrame) -> Spec:
    first, last = float(table["step"].min()), float(table["step"].max())
    alone = first == last
    axis = {"values": [first]} if alone else {"tickCount": 5, "tickMinStep": 1}
    return {
        "field": "step",
        "type": "quantitative",
        "title": "step",
        "scale": {"domain": [first - alone, last + alone], "nice": False, "zero": False},
        "axis": {**axis, "format": "~s", "grid": False},
    }


def _y(table: pd.DataFrame, logarithmic: bool, ends: tuple[float, float] | None) -> Spec:
    """The axis of values: `ends`, extended to include all lines and bands."""
    values = pd.concat([table["value"], table["low"], table["high"]])
    values = values[np.isfinite(values) & ((values > 0) if logarithmic else True)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    span, least = high - low, LEAST * max(abs(low), abs(high))
    room = max(0.04 * span, (least - span) / 2) or 1.0
    domain = [low / 1.05, high * 1.05] if logarithmic else [low - room, high + room]
    if ends is not None:
        domain = [min(low, ends[0]), max(high, ends[1])]
    scale = {"type": "log", "domain": domain} if logarithmic else {"domain": domain, "nice": False, "zero": False}
    return {"type": "quantitative", "title": None, "scale": scale, "axis": {"tickCount": 5, "format": ".3~g"}}
