"""Numbers over training as lines, one colour a run: those of the chosen head with its forecast, and any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from .chart import Chart, Spec, full_width, integer, parameters, series_colour, series_names, series_tooltip, tooltip

HEAD = "The chosen head. Dashed: its trend carried on to where it saturates, if it grows."


def measured(tables: Sequence[pd.DataFrame], column: str) -> pd.DataFrame:
    """One column of the tables of some runs, with report (from 1), part, step and value; layer and head if any.

    Empty where no run has the column.
    """
    parts = [
        table[[name for name in ("step", "layer", "head") if name in table]].assign(
            value=table[column], report=number, part="measured"
        )
        for number, table in enumerate(tables, start=1)
        if column in table and table[column].notna().any()
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def head_line(table: pd.DataFrame, column: str, title: str, names: Sequence[str], limit: float | None) -> Chart:
    """One metric of the chosen head; `table` has report, part ("measured" or "forecast"), step, layer, head, value."""
    name, ahead = f"line-{column.replace('_', '-')}", (table["part"] == "forecast").any()
    spec: Spec = {
        "title": {"text": {"expr": f"'{title}, layer ' + layer + ', head ' + head"}},
        "data": {"table": name},
        "params": parameters(names=list(names), layer=1, head=1),
        "transform": [{"filter": "datum.layer == layer && datum.head == head"}, *series_names(names)],
        "layer": [
            *([_limit(limit)] if limit is not None and table["value"].max() > limit / 4 else []),
            _line(table, names, "measured", strokeWidth=2, point={"filled": True, "size": 24}),
            *([_line(table, names, "forecast", strokeWidth=1.5, strokeDash=[4, 3])] if ahead else []),
        ],
    }
    return Chart(name, full_width(spec, height=200), "", {name: table})


def update_line(
    table: pd.DataFrame, column: str, title: str, names: Sequence[str], events: Mapping[str, int] | None = None
) -> Chart:
    """A number of single updates; `table` has report, part, step and value. `events`: words at steps to mark."""
    name = f"line-{column.replace('_', '-')}"
    spec: Spec = {
        "title": {"text": title},
        "data": {"table": name},
        "params": parameters(names=list(names)),
        "transform": series_names(names),
        "layer": [_line(table, names, "measured", strokeWidth=1.2), *(_events(events) if events else [])],
    }
    return Chart(name, full_width(spec, height=200), "", {name: table})


def _line(table: pd.DataFrame, names: Sequence[str], part: str, **mark: object) -> Spec:
    first, last = float(table["step"].min()), float(table["step"].max())
    x = {
        "field": "step",
        "type": "quantitative",
        "title": "step",
        "scale": {"domain": [first, max(last, first + 1)], "nice": False, "zero": False},
        "axis": {"format": "~s", "grid": False, "tickCount": 5},
    }
    y = {"field": "value", "type": "quantitative", "title": None, "scale": {"zero": False}, "axis": {"tickCount": 5}}
    tips = [*series_tooltip(names), *tooltip(step=integer("step"), value="value")]
    return {
        "transform": [{"filter": f"datum.part == '{part}'"}],
        "mark": {"type": "line", "style": "series", "clip": True, **mark},
        "encoding": {"x": x, "y": y, "tooltip": tips, "order": {"field": "step"}, **series_colour(names)},
    }


def _limit(value: float) -> Spec:
    return {
        "data": {"values": [{"limit": value}]},
        "mark": {"type": "rule", "style": "warning", "strokeDash": [2, 3], "tooltip": None},
        "encoding": {"y": {"field": "limit", "type": "quantitative"}},
    }


def _events(events: Mapping[str, int]) -> list[Spec]:
    """A vertical line for each, with its words at the top, one below the other."""
    data = {"values": [{"step": step, "what": what, "place": n} for n, (what, step) in enumerate(events.items())]}
    x = {"field": "step", "type": "quantitative"}
    rule = {"type": "rule", "style": "warning", "strokeWidth": 1.5, "strokeDash": [2, 3]}
    words = {"type": "text", "style": "warning", "align": "right", "dx": -5, "baseline": "top", "fontSize": 12}
    tips = [{"field": "what", "title": "what"}, *tooltip(step=integer("step"))]
    return [
        {"data": data, "mark": rule, "encoding": {"x": x, "tooltip": tips}},
        *(
            {
                "data": data,
                "transform": [{"filter": f"datum.place == {n}"}],
                "mark": words | {"dy": 14 * n},
                "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "what"}},
            }
            for n in range(len(events))
        ),
    ]
