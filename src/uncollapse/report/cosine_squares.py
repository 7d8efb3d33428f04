"""How alike every two tokens are, as one square for each of some layers, side by side."""

from __future__ import annotations

import pandas as pd

from .chart import Chart, Spec, full_width, gradient_legend, integer, parameters, tooltip

CAPTION = (
    "A square has a row and a column for each token; a cell is the cosine of two of them. Yellow: they point the same "
    "way. Where a square is yellow all over, the tokens are all but equal."
)


def cosine_squares(table: pd.DataFrame, name: str, title: str) -> Chart:
    """Squares from left to right; `table` has layer, row, column (tokens from 1) and cosine, layer 0 is the input."""
    tokens, layers = int(table["row"].max()), [int(layer) for layer in table["layer"].unique()]
    pitch = tokens + max(1, tokens // 8)  # a square and the space after it
    left = table["layer"].map({layer: pitch * place for place, layer in enumerate(layers)}) + table["column"] - 1
    cells = table.assign(left=left, right=left + 1, top=table["row"] - 1, bottom=table["row"])
    centres = [pitch * place + tokens / 2 for place in range(len(layers))]
    words = ["input" if layer == 0 else str(layer) for layer in layers]
    x: Spec = {
        "type": "quantitative",
        "scale": {"domain": [0, pitch * len(layers) - pitch + tokens], "nice": False, "zero": False},
        "axis": {
            **{"title": "layer", "values": centres, "grid": False, "ticks": False, "domain": False},
            "labelExpr": f"words[round((datum.value - {tokens / 2}) / {pitch})]",
        },
    }
    y: Spec = {
        "type": "quantitative",
        "scale": {"domain": [0, tokens], "reverse": True, "nice": False},
        "axis": {"title": None, "labels": False, "grid": False, "ticks": False, "domain": False},
    }
    colour = {
        "field": "cosine",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "range": "heatmap", "clamp": True},
        "legend": gradient_legend("cosine", tickCount=3),
    }
    tips = tooltip(layer=integer("layer"), row=integer("token"), column=integer("and token"), cosine="cosine")
    spec: Spec = {
        "title": title,
        "data": {"table": name},
        "params": parameters(words=words),
        "mark": {"type": "rect", "strokeWidth": 0},
        "encoding": {
            "x": {"field": "left", **x},
            "x2": {"field": "right"},
            "y": {"field": "top", **y},
            "y2": {"field": "bottom"},
            "color": colour,
            "tooltip": tips,
        },
    }
    return Chart(name, full_width(spec, height=92), "", {name: cells})
