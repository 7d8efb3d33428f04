"""A measure by layer as lines, one a report; reports may differ in depth."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .chart import (
    Chart,
    Spec,
    number_axis,
    parameters,
    series_colour,
    series_names,
    series_tooltip,
    tooltip,
    whole,
    wide,
)

SMALLEST = 1e-17  # below float64's rounding: what a logarithmic axis shows of 0
MEASURES = {  # column: title, how to read it, the ends of the axis
    "residual_ratio": ("Residual ratio", "1: tokens as different as can be; towards 0: all alike.", (0.0, 1.0)),
    "cosine_mean": ("Mean cosine of tokens", "1: all tokens point the same way; 0: no more than by chance.", None),
    "entropy_normalised": ("Entropy, normalised", "1: attention is even; 0: every row looks at one key.", (0.0, 1.0)),
    "logit_max": ("Largest score", "Above 80, the softmax of float32 saturates.", None),
}


def depth_lines(
    layers: pd.DataFrame,
    column: str,
    names: Sequence[str],
    moment: str = "",
    ends: tuple[float, float] | None = None,
) -> Chart:
    """Lines of a column of MEASURES; `layers` has report, layer and the column.

    `moment` tells charts of one measure apart, in title and name; `ends` of the axis replace those of MEASURES.
    """
    title, aid, usual = MEASURES[column]
    ends = usual if ends is None else ends
    name = f"{column}-lines{f'-{moment}' if moment else ''}".replace(" ", "-")
    table = layers[["report", "layer", column]].rename(columns={column: "value"}).dropna()
    logarithmic = column == "residual_ratio" and bool((table["value"] < 0.01).any())
    scale: Spec = {"nice": True, "zero": False} if ends is None else {"domain": list(ends)}
    axis: Spec = {"tickCount": 5, "format": ".3~g"}
    if logarithmic:
        table["value"] = table["value"].clip(lower=SMALLEST)
        scale = {"type": "log", "domainMax": 1.0}
        axis = {"tickCount": 6, "labelExpr": "datum.value < 0.01 ? format(datum.value, '.0e') : datum.value"}
    depth = int(table["layer"].max())
    x = {
        "type": "quantitative",
        "scale": {"domain": [0.5, depth + 0.5], "nice": False, "zero": False},
        "axis": number_axis("layer", depth),
    }
    band = {
        "data": {"sequence": {"start": 1, "stop": depth + 1, "as": "layer"}},
        "transform": [
            {"calculate": "datum.layer - 0.5", "as": "left"},
            {"calculate": "datum.layer + 0.5", "as": "right"},
        ],
        "mark": {"type": "rect", "style": "chosen", "cursor": "pointer", "tooltip": None},
        "encoding": {
            "x": {"field": "left", **x},
            "x2": {"field": "right"},
            "y": {"value": 0},
            "y2": {"value": "height"},
            "fillOpacity": {"condition": {"test": "datum.layer == layer", "value": 0.13}, "value": 0},
        },
    }
    y = {"field": "value", "type": "quantitative", "title": None, "scale": scale, "axis": axis}
    dashes = {"domain": list(range(1, len(names) + 1)), "range": [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]]}
    told = [*series_tooltip(names), *tooltip(layer=whole("layer"), value=title.lower())]
    colour = series_colour(names)
    encoding = {"x": {"field": "layer", **x}, "y": y, "tooltip": told, **colour}
    line = {
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {
            **encoding,
            "strokeDash": {"field": "report", "type": "nominal", "scale": dashes, "legend": colour["color"]["legend"]},
        },
    }
    points = {"mark": {"type": "point", "filled": True, "opacity": 1, "size": 30}, "encoding": encoding}
    spec = {
        "title": f"{title}, {moment}" if moment else title,
        "data": {"table": name},
        "params": parameters(layer=1, names=list(names)),
        "transform": series_names(names),
        "layer": [band, line, points],
    }
    return Chart(name.replace("_", "-"), wide(spec, height=216), aid, {name: table})
