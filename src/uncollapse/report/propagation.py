"""Signal propagation in the selected head: rho by relative position."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .chart import Chart, full_width, parameters, series_colour, series_names, series_tooltip, tooltip

CAPTION = "How often a position's signal reaches the query: flat is even, a peak is localised, 0 everywhere is lost."
NAME = "propagation"


def propagation_line(propagation: pd.DataFrame, names: Sequence[str]) -> Chart:
    """One line per report for the selected head; `propagation` has report, layer, head, position and rho."""
    position = {
        "field": "position",
        "type": "quantitative",
        "title": "position (0: first key, 1: last)",
        "scale": {"domain": [0, 1]},
        "axis": {"format": ".2~g", "tickCount": 5},
    }
    rho = {
        "field": "rho",
        "type": "quantitative",
        "title": "ρ",
        "scale": {"domain": [0, 1]},
        "axis": {"tickCount": 5},
    }
    tooltips = [*series_tooltip(names), *tooltip(position="position", rho="ρ")]
    colour = series_colour(names)
    spec = {
        "title": {"text": {"expr": "'Propagation, layer ' + layer + ', head ' + head"}},
        "data": {"table": NAME},
        "params": parameters(layer=1, head=1, names=list(names)),
        "transform": [{"filter": "datum.layer == layer && datum.head == head"}, *series_names(names)],
        "encoding": {"x": position, "y": rho, "tooltip": tooltips, **colour},
        "layer": [
            {"mark": {"type": "line", "style": "series", "strokeWidth": 2}},
            {"mark": {"type": "point", "style": "series", "filled": True, "opacity": 1, "size": 20}},
        ],
    }
    return Chart(
        NAME,
        full_width(spec, height=216),
        CAPTION,
        {NAME: propagation.assign(position=propagation["position"].round(3))},
    )
