"""Measures over training: a line for the mean of seeds with a band for their spread, thin ones for unfinished runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .chart import Chart, Spec, parameters, series_colour, series_names, series_tooltip, tooltip, whole, wide

AID = (
    "Lines are means over seeds, bands one standard deviation to either side; a dashed line that ends in a cross is a "
    "run that did not finish."
)
FEW = 25  # steps up to which each is marked
LEAST = 0.04  # of the largest number: the axis spans this at least, or its three digits would repeat


MEAN = "mean of finished runs"


def training_curve(
    table: pd.DataFrame,
    name: str,
    title: str,
    names: Sequence[str],
    *,
    logarithmic: bool = False,
    ends: tuple[float, float] | None = None,
) -> Chart:
    """One measure over steps.

    `table` has report (from 1), run (MEAN for that of seeds, else the name of an unfinished run), step, value, low,
    high and, if the page chooses among layers, layer.
    """
    table = table[np.isfinite(table["value"])]
    by_layer = "layer" in table
    spec = {
        "title": {"text": {"expr": f"'{title}, layer ' + layer"} if by_layer else title},
        "data": {"table": name},
        "params": parameters(names=list(names), **({"layer": 1} if by_layer else {})),
        "transform": [*([{"filter": "datum.layer == layer"}] if by_layer else []), *series_names(names)],
        "layer": _layers(table, names, _y(table, logarithmic, ends)),
    }
    return Chart(name, wide(spec, height=216), "", {name: table})


def _layers(table: pd.DataFrame, names: Sequence[str], y: Spec) -> list[Spec]:
    """Band, mean, unfinished runs and the crosses at their ends; what has no rows is left out."""
    colour, x = series_colour(names), _x(table)
    told = [
        *series_tooltip(names),
        {"field": "run", "title": "runs", "type": "nominal"},
        *tooltip(step=whole("step"), value="value", low="less the spread", high="plus the spread"),
    ]
    encoding = {"x": x, "y": {"field": "value", **y}, "tooltip": told, "detail": {"field": "run"}, **colour}
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
    """The axis of values: from end to end, or as far as lines and bands go in any layer."""
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
