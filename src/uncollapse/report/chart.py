"""Chart: a Vega-Lite specification, the tables that it draws, and a line on how to read it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

Spec = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """What a page needs to draw one chart.

    `name` is its place in the page and the name of saved pictures; `aid` says in one line how to read it. In `spec`,
    `data` is `{"table": name}` with a name of `tables`, so that a page holds a table once that several charts draw.
    """

    name: str
    spec: Spec
    aid: str = ""
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    def alone(self, config: Spec | None = None) -> Spec:
        """The specification with its tables inside."""
        spec: Spec = _filled(copy.deepcopy(self.spec), {name: table_data(t) for name, t in self.tables.items()})
        return spec | {"config": config} if config else spec


def table_data(table: pd.DataFrame) -> Spec:
    """A table as Vega-Lite's inline data: CSV with four digits, a third of the size of JSON.

    >>> table_data(pd.DataFrame({"layer": [1, 2], "value": [0.123456, float("inf")]}))["values"]
    'layer,value\\n1,0.1235\\n2,\\n'
    """
    numbers = table.select_dtypes("number").columns
    table = table.assign(**{name: table[name].replace([np.inf, -np.inf], np.nan) for name in numbers})
    parse = {str(name): "number" if name in numbers else "string" for name in table.columns}
    values = table.to_csv(index=False, float_format="%.4g", lineterminator="\n")
    return {"values": values, "format": {"type": "csv", "parse": parse}}


def parameters(**values: Any) -> list[Spec]:
    """Named values that a page may change while the chart is shown."""
    return [{"name": name, "value": value} for name, value in values.items()]


def wide(spec: Spec, height: int) -> Spec:
    """A chart as wide as its place in the page."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **spec,
    }


def number_axis(title: str | None, count: int) -> Spec:
    """An axis for whole numbers 1, ..., count, with as many labels as there is room for."""
    values = list(range(1, count + 1))
    quiet = {"grid": False, "ticks": False, "domain": False, "labelAngle": 0, "labelOverlap": "parity"}
    return {"title": title, "values": values, "format": "d", **quiet}


def tooltip(**titles: str | tuple[str, str]) -> list[Spec]:
    """Fields of a tooltip with their titles; numbers get three digits unless a format is given."""
    rows = []
    for name, title in titles.items():
        text, form = title if isinstance(title, tuple) else (title, ".3~g")
        rows.append({"field": name, "title": text, "type": "quantitative", "format": form})
    return rows


def whole(title: str) -> tuple[str, str]:
    """The title of a whole number in a tooltip."""
    return title, "d"


def series_colour(names: Sequence[str]) -> Spec:
    """Colour by the column `report` (1, 2, ...), with the names in the legend; nothing for one report."""
    if len(names) < 2:
        return {}
    legend = {"title": None, "orient": "top", "labelExpr": "names[datum.value - 1]", "labelLimit": 260, "columns": 2}
    scale = {"domain": list(range(1, len(names) + 1))}
    return {"color": {"field": "report", "type": "nominal", "scale": scale, "legend": legend | {"symbolOpacity": 1}}}


def series_tooltip(names: Sequence[str]) -> list[Spec]:
    """The report's name in a tooltip; `names` is a parameter of the chart."""
    return [{"field": "name", "title": "report", "type": "nominal"}] if len(names) > 1 else []


def series_names(names: Sequence[str]) -> list[Spec]:
    """The transform that writes the report's name into each row, for tooltips; none for one report."""
    return [{"calculate": "names[datum.report - 1]", "as": "name"}] if len(names) > 1 else []


def _filled(value: Any, tables: Mapping[str, Spec]) -> Any:
    if isinstance(value, list):
        return [_filled(item, tables) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: tables[item["table"]] if key == "data" and "table" in item else _filled(item, tables)
        for key, item in value.items()
    }
