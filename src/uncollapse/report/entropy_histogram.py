"""Histogram of the entropies of the selected head's attention rows."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .chart import Chart, full_width, parameters, series_colour, series_names, series_tooltip, tooltip

CAPTION = "How wide the rows of this head look, in nats: bars at 0 are rows with all their weight on one key."
NAME = "entropy-histogram"


def entropy_histogram(
    outlines: pd.DataFrame, width: float, top: float, names: Sequence[str], table: str = NAME
) -> Chart:
    """Bars of `width` for the selected head; `outlines` has report, layer, head, value and share."""
    entropy = {
        "field": "low",
        "type": "quantitative",
        "title": "entropy in nats",
        "scale": {"domain": [0, top], "nice": False},
        "axis": {"format": ".2~g", "tickCount": 6},
    }
    share = {
        "field": "share",
        "type": "quantitative",
        "title": "share of rows",
        "scale": {"nice": True, "zero": True},
        "axis": {"format": ".0%", "tickCount": 5},
    }
    spec = {
        "title": {"text": {"expr": "'Entropy, layer ' + layer + ', head ' + head"}},
        "data": {"table": table},
        "params": parameters(layer=1, head=1, names=list(names)),
        "transform": [
            {"filter": "datum.layer == layer && datum.head == head && datum.share > 0"},
            {"calculate": f"max(0, datum.value - {width / 2})", "as": "low"},
            {"calculate": f"datum.value + {width / 2}", "as": "high"},
            *series_names(names),
        ],
        "mark": {"type": "rect", "style": ["cell", "series"], "opacity": 0.6 if len(names) > 1 else 1},
        "encoding": {
            "x": entropy,
            "x2": {"field": "high"},
            "y": share,
            "y2": {"datum": 0},
            "tooltip": [*series_tooltip(names), *tooltip(low="from", high="to", share=("share of rows", ".1%"))],
            **series_colour(names),
        },
    }
    return Chart(NAME, full_width(spec, height=216), CAPTION, {table: outlines})
