"""The residual ratio of attention-only networks by depth, one line per network."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from .chart import SMALLEST, Chart, Spec, full_width, integer, logarithmic_axis, number_axis, parameters, tooltip

CAPTION = (
    "Residual ratio after each layer, on a logarithmic axis. 1: tokens as different as can be; a line that falls means "
    "that tokens become alike; near 1e-16 they are equal up to rounding."
)


def depth_networks(table: pd.DataFrame, names: Sequence[str], solid: int) -> Chart:
    """Lines of `mean` over `depth`; the column `report` (from 1) selects colour and name of a network.

    Networks with a number above `solid` are dashed, since they may lie on top of another line.
    """
    shown = sorted(int(number) for number in table["report"].unique())
    table = table.assign(mean=table["mean"].clip(lower=SMALLEST))
    deepest = int(table["depth"].max())
    legend = {"title": None, "orient": "top", "columns": 2, "labelExpr": "networks[datum.value - 1]", "values": shown}
    colour = {
        "field": "report",
        "type": "nominal",
        "scale": {"domain": list(range(1, len(names) + 1))},
        "legend": legend | {"labelLimit": 200, "symbolOpacity": 1},
    }
    lowest = 10.0 ** math.floor(math.log10(float(table["mean"].min())))
    y: Spec = {
        "field": "mean",
        "type": "quantitative",
        "title": "residual ratio",
        "scale": {"type": "log", "domain": [lowest, 2.0]},
        "axis": logarithmic_axis(),
    }
    x = {
        "field": "depth",
        "type": "quantitative",
        "scale": {"domain": [0.7, deepest + 0.3], "nice": False, "zero": False},
        "axis": number_axis("layers", deepest),
    }
    tooltips = [
        {"field": "attention", "title": "network", "type": "nominal"},
        *tooltip(depth=integer("layers"), mean="residual ratio", spread="spread of initialisations"),
    ]
    other = f"datum.report > {solid}"
    dash = {"condition": {"test": other, "value": [5, 4]}, "value": [1, 0]}
    size = {"condition": {"test": other, "value": 22}, "value": 46}
    encoding = {"x": x, "y": y, "color": colour, "tooltip": tooltips}
    spec = {
        "title": "Attention alone, at initialisation",
        "data": {"table": "depth-networks"},
        "params": parameters(networks=list(names)),
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2.5}, "encoding": encoding | {"strokeDash": dash}},
            {"mark": {"type": "point", "filled": True, "opacity": 1}, "encoding": encoding | {"size": size}},
        ],
    }
    return Chart("depth-networks", full_width(spec, height=330), CAPTION, {"depth-networks": table})
