"""Signal propagation over training: a heat map of rho by step and relative position."""

from __future__ import annotations

import pandas as pd

from .chart import Chart, Spec, full_width, gradient_legend, integer, parameters, tooltip

BINS = 20  # of relative position
CAPTION = (
    "A column is a diagnosis: how often the signal of a position reaches the query (rho), from the first key at the "
    "bottom to the last on top. Yellow everywhere: all positions alike; a yellow strip: localised; dark: lost."
)
SCOPES = {  # value of the menu: label, explanation
    "mean": ("mean of all heads", ""),
    "layer": ("chosen layer", ""),
    "head": ("chosen head", ""),
}


def binned(propagation: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Mean of rho in BINS bins of position for each combination of `by`, which keeps pages small."""
    position = ((propagation["position"] * BINS).astype(int).clip(upper=BINS - 1) / BINS).round(3)
    return propagation.assign(position=position).groupby([*by, "position"], as_index=False)["rho"].mean()


def rho_map(rho: pd.DataFrame, name: str, steps: list[int]) -> Chart:
    """The map of one group; `rho` has step, layer, head, position (the lower edge of a bin) and rho."""
    steps_axis = {"labelAngle": 0, "ticks": False, "domain": False, "labelOverlap": "parity", "title": "step"}
    legend = gradient_legend("rho", length=180, titleOrient="left", tickCount=3)
    position = {"type": "quantitative", "scale": {"domain": [0, 1]}, "axis": {"tickCount": 5, "grid": False}}
    words = "scope == 'mean' ? 'mean of all heads' : 'layer ' + layer + (scope == 'head' ? ', head ' + head : '')"
    spec: Spec = {
        "title": {"text": {"expr": f"'Propagation, ' + ({words})"}},
        "data": {"table": name},
        "params": parameters(layer=1, head=1, scope="mean"),
        "transform": [
            {"filter": "scope == 'mean' || (datum.layer == layer && (scope == 'layer' || datum.head == head))"},
            {"aggregate": [{"op": "mean", "field": "rho", "as": "rho"}], "groupby": ["step", "position"]},
            {"calculate": f"datum.position + {1 / BINS}", "as": "top"},
        ],
        "mark": {"type": "rect", "clip": True},
        "encoding": {
            "x": {"field": "step", "type": "ordinal", "scale": {"domain": steps, "padding": 0}, "axis": steps_axis},
            "y": {"field": "position", "title": "position", **position},
            "y2": {"field": "top"},
            "color": {
                "field": "rho",
                "type": "quantitative",
                "scale": {"domain": [0, 1], "range": "heatmap"},
                "legend": legend,
            },
            "tooltip": tooltip(step=integer("step"), position="position", rho="rho"),
        },
    }
    return Chart(name, full_width(spec, height=200), CAPTION, {name: rho})
