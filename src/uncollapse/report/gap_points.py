"""Gaps of all heads by layer, beside the threshold and what is usual: where the softmax saturates."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from .chart import Chart, Spec, full_width, integer, number_axis, parameters, selection_band, tooltip

NAME = "gap-points"
FLOOR = 0.01  # gaps below this are drawn at it: the axis is logarithmic


def gap_points(heads: pd.DataFrame, depth: int, limits: Mapping[str, float]) -> Chart:
    """One point a head; `limits` has the threshold `gap_mean` and, where it is known, what is usual as `gap_usual`."""
    table = heads[["layer", "head", "gap_mean", "gap_max", "entropy_normalised"]].dropna(subset=["gap_mean"])
    table = table.assign(shown=table["gap_mean"].clip(lower=FLOOR))
    x = {
        "type": "quantitative",
        "scale": {"domain": [0.5, depth + 0.5], "nice": False, "zero": False},
        "axis": number_axis("layer", depth),
    }
    axis = {"tickCount": 5, "format": "~g"}
    y: Spec = {"type": "quantitative", "title": "mean gap", "scale": {"type": "log", "nice": True}, "axis": axis}
    numbers = {"sequence": {"start": 1, "stop": depth + 1, "as": "layer"}}
    words = tooltip(layer=integer("layer"), head=integer("head"), gap_mean="mean gap", gap_max="largest gap")
    points = {
        "mark": {"type": "point", "style": "series", "filled": True, "opacity": 0.8, "size": 42, "cursor": "pointer"},
        "encoding": {"x": {"field": "layer", **x}, "y": {"field": "shown", **y}, "tooltip": words},
    }
    chosen = {
        "transform": [{"filter": "datum.layer == layer && datum.head == head"}],
        "mark": {"type": "point", "style": "frame", "filled": False, "size": 110, "strokeWidth": 2, "tooltip": None},
        "encoding": {"x": {"field": "layer", **x}, "y": {"field": "shown", **y}},
    }
    lines = _line(limits["gap_mean"], f"saturated: {limits['gap_mean']:g}", "warning", y)
    usual = limits.get("gap_usual")
    if usual is not None:
        lines += _line(usual, f"usual: up to {usual:.2g}", "zero", y)
    spec = {
        "title": "Mean gap of each head by layer",
        "data": {"table": NAME},
        "params": parameters(layer=1, head=1),
        "layer": [selection_band("layer", x, numbers, "datum.layer == layer"), *lines, points, chosen],
    }
    caption = (
        "A point is a head: the largest score of a row minus the second largest, on average. Above the orange line the "
        "second weight is nothing beside the first: with low entropy, that is an entropy collapse. Usual is where 95 % "
        "of the heads of healthy trained models are."
    )
    return Chart(NAME, full_width(spec, height=200), caption, {NAME: table})


def _line(value: float, words: str, style: str, y: Spec) -> list[Spec]:
    """A dashed line across the chart, and its words at the left end above it; drawn once, not once for each head."""
    once = {"data": {"values": [{}]}, "encoding": {"y": {"datum": value, **y}}}
    rule = {"type": "rule", "style": style, "strokeDash": [5, 4], "tooltip": None}
    text: Spec = {"type": "text", "style": style, "text": words, "tooltip": None}
    text |= {"align": "left", "baseline": "bottom", "dy": -3, "x": 4}
    return [{**once, "mark": rule}, {**once, "mark": text}]
