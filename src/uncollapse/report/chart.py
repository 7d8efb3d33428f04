"""Chart, a Vega-Lite specification with its tables and caption, and the parts that specifications share."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
SMALLEST = 1e-17  # below float64's rounding; a logarithmic axis shows 0 as this


@dataclass(frozen=True)
class Chart:
    """One chart of a page.

    `name` is the id of its element and the file name of saved pictures; `caption` says in one line how to read it.
    `data` in `spec` is `{"table": name}` with a name in `tables`, so that a page stores a table once if several charts
    use it.
    """

    name: str
    spec: Spec
    caption: str = ""
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    def standalone(self, config: Spec | None = None) -> Spec:
        """The specification with its tables inlined."""
        spec: Spec = _with_tables(copy.deepcopy(self.spec), {name: table_data(t) for name, t in self.tables.items()})
        return spec | {"config": config} if config else spec


def table_data(table: pd.DataFrame) -> Spec:
    """A table as inline data of Vega-Lite: CSV with four significant digits, a third of the size of JSON.

    >>> table_data(pd.DataFrame({"layer": [1, 2], "value": [0.123456, float("inf")]}))["values"]
    'layer,value\\n1,0.1235\\n2,\\n'
    """
    numbers = table.select_dtypes("number").columns
    table = table.assign(**{name: table[name].replace([np.inf, -np.inf], np.nan) for name in numbers})
    parse = {str(name): "number" if name in numbers else "string" for name in table.columns}
    values = table.to_csv(index=False, float_format="%.4g", lineterminator="\n")
    return {"values": values, "format": {"type": "csv", "parse": parse}}


def parameters(**values: Any) -> list[Spec]:
    """Parameters that the page can change while the chart is shown."""
    return [{"name": name, "value": value} for name, value in values.items()]


def full_width(spec: Spec, height: int) -> Spec:
    """A chart that fills the width of its container."""
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **spec,
    }


def number_axis(title: str | None, count: int) -> Spec:
    """An axis for the integers 1, ..., count; labels that do not fit are dropped."""
    values = list(range(1, count + 1))
    quiet = {"grid": False, "ticks": False, "domain": False, "labelAngle": 0, "labelOverlap": "parity"}
    return {"title": title, "values": values, "format": "d", **quiet}


def logarithmic_axis() -> Spec:
    """Ticks of a logarithmic axis of ratios; values below 0.01 are labelled as powers of ten."""
    return {"tickCount": 6, "labelExpr": "datum.value < 0.01 ? format(datum.value, '.0e') : datum.value"}


def gradient_legend(title: str | None = None, length: int = 220, **more: Any) -> Spec:
    """A horizontal colour bar below the chart."""
    size = {"gradientLength": length, "gradientThickness": 8}
    return {"orient": "bottom", "direction": "horizontal", "title": title, **size, **more}


def selection_band(
    by: str, x: Spec, data: Spec, selected: str, filters: Sequence[Spec] = (), tooltips: Sequence[Spec] = ()
) -> Spec:
    """A shaded band behind the layer or head that is selected in the page; clicking a band selects it.

    `by` is the column of the numbers on the axis `x`, `selected` the condition under which a band is shaded.
    """
    edges = [{"calculate": f"datum.{by} {sign} 0.5", "as": side} for sign, side in (("-", "left"), ("+", "right"))]
    return {
        "data": data,
        "transform": [*filters, *edges],
        "mark": {"type": "rect", "style": "chosen", "cursor": "pointer", **({} if tooltips else {"tooltip": None})},
        "encoding": {
            "x": {"field": "left", **x},
            "x2": {"field": "right"},
            "y": {"value": 0},
            "y2": {"value": "height"},
            "fillOpacity": {"condition": {"test": selected, "value": 0.13}, "value": 0},
            **({"tooltip": list(tooltips)} if tooltips else {}),
        },
    }


def tooltip(**titles: str | tuple[str, str]) -> list[Spec]:
    """Fields of a tooltip with their titles; numbers have three digits unless a format is given."""
    rows = []
    for name, title in titles.items():
        text, form = title if isinstance(title, tuple) else (title, ".3~g")
        rows.append({"field": name, "title": text, "type": "quantitative", "format": form})
    return rows


def integer(title: str) -> tuple[str, str]:
    """The title of an integer in a tooltip."""
    return title, "d"


def series_colour(names: Sequence[str]) -> Spec:
    """Colour by the column `report` (1, 2, ...) with a legend of names; empty for a single report."""
    if len(names) < 2:
        return {}
    legend = {"title": None, "orient": "top", "labelExpr": "names[datum.value - 1]", "labelLimit": 260, "columns": 2}
    scale = {"domain": list(range(1, len(names) + 1))}
    return {"color": {"field": "report", "type": "nominal", "scale": scale, "legend": legend | {"symbolOpacity": 1}}}


def series_tooltip(names: Sequence[str]) -> list[Spec]:
    """The name of the report in a tooltip; empty for a single report."""
    return [{"field": "name", "title": "report", "type": "nominal"}] if len(names) > 1 else []


def series_names(names: Sequence[str]) -> list[Spec]:
    """The transform that adds the column `name` for tooltips; empty for a single report."""
    return [{"calculate": "names[datum.report - 1]", "as": "name"}] if len(names) > 1 else []


def _with_tables(value: Any, tables: Mapping[str, Spec]) -> Any:
    if isinstance(value, list):
        return [_with_tables(item, tables) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: tables[item["table"]] if key == "data" and "table" in item else _with_tables(item, tables)
        for key, item in value.items()
    }
