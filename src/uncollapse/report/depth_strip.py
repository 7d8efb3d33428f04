"""Depth at a glance: one cell per layer for residual ratio, similarity of tokens and entropy."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from .chart import Chart, full_width, gradient_legend, integer, parameters, tooltip
from .theme import MARGIN

CAPTION = (
    "Orange is where tokens become alike or attention narrows to one key; "
    "a triangle marks a layer that a verdict calls collapsed."
)
# row: column of the table, and whether 1 (rather than 0) means collapsed
ROWS = {
    "residual": ("residual_ratio", False),
    "similarity": ("cosine_mean", True),
    "entropy": ("entropy_normalised", False),
}
WORDS = {
    "residual": "residual ratio (0: all tokens alike)",
    "similarity": "mean cosine of token pairs (1: all alike)",
    "entropy": "entropy, as a share of what the keys allow (0: one key)",
}
MARK = "collapse"


def depth_strip(layers: pd.DataFrame, collapsed: Iterable[int], depth: int, name: str = "depth-strip") -> Chart:
    """Cells coloured from collapsed to healthy; `collapsed` are the layers that a verdict names."""
    cells = []
    for row, (column, reverse) in ROWS.items():
        if column in layers:
            value = layers[column]
            colour = (1 - value if reverse else value).clip(0.0, 1.0)
            cells.append(pd.DataFrame({"layer": layers["layer"], "row": row, "value": value, "colour": colour}))
    table = pd.concat(cells, ignore_index=True).dropna()
    table["words"] = table["row"].map(WORDS)
    marks = pd.DataFrame({"layer": sorted(set(collapsed)), "row": MARK})
    rows = [*([MARK] if len(marks) else []), *table["row"].unique()]
    x = {
        "field": "layer",
        "type": "ordinal",
        "scale": {"domain": list(range(1, depth + 1)), "padding": 0},
        "axis": {"title": "layer", "labelAngle": 0, "ticks": False, "domain": False, "labelOverlap": "parity"},
    }
    y = {
        "field": "row",
        "type": "ordinal",
        "scale": {"domain": rows, "padding": 0},
        "axis": {"title": None, "ticks": False, "domain": False, "labelPadding": 5, "minExtent": MARGIN},
    }
    legend = gradient_legend(values=[0, 1], labelExpr="datum.value == 0 ? 'collapsed' : 'apart, spread'")
    colour_of = {
        "field": "colour",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "range": "diverging", "interpolate": "lab"},
        "legend": legend,
    }
    tooltips = [
        {"field": "words", "type": "nominal", "title": "what"},
        *tooltip(layer=integer("layer"), value=("value", ".2~g")),
    ]
    cell = {
        "mark": {"type": "rect", "style": "cell", "cursor": "pointer"},
        "encoding": {"x": x, "y": y, "color": colour_of, "tooltip": tooltips},
    }
    text = {
        "transform": [{"calculate": "format(datum.value, abs(datum.value) < 0.01 ? '.0e' : '.2f')", "as": "shown"}],
        "mark": {
            "type": "text",
            "style": "cell-text",
            "tooltip": None,
            "cursor": "pointer",
            "opacity": {"expr": f"width / {depth} > 30 ? 1 : 0"},
        },
        "encoding": {
            "x": x,
            "y": y,
            "text": {"field": "shown", "type": "nominal"},
            "color": {
                "condition": {"test": "dark || datum.colour < 0.2 || datum.colour > 0.88", "value": "#ffffff"},
                "value": "#1f2430",
            },
        },
    }
    frame = {
        "transform": [{"filter": "datum.layer == layer"}],
        "mark": {"type": "rect", "style": "frame", "filled": False, "strokeWidth": 2, "tooltip": None},
        "encoding": {"x": x, "y": y},
    }
    triangles = {
        "data": {"table": f"{name}-marks"},
        "mark": {"type": "point", "shape": "triangle-up", "filled": True, "opacity": 1, "size": 70, "style": "warning"},
        "encoding": {"x": x, "y": y},
    }
    spec = full_width(
        {
            "title": "Residual, similarity, entropy",
            "data": {"table": name},
            "params": parameters(layer=1, dark=False),
            "layer": [cell, text, frame, *([triangles] if len(marks) else [])],
        },
        height=34 * len(rows),
    )
    return Chart(name, spec, CAPTION, {name: table, **({f"{name}-marks": marks} if len(marks) else {})})
