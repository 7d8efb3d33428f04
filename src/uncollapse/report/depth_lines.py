"""A measure by layer, one line per report; reports may differ in depth."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .chart import (
    SMALLEST,
    Chart,
    Spec,
    full_width,
    integer,
    logarithmic_axis,
    number_axis,
    parameters,
    selection_band,
    series_colour,
    series_names,
    series_tooltip,
    tooltip,
)

MEASURES = {  # column: title, caption, ends of the axis
    "residual_ratio": ("Residual ratio", "1: tokens as different as can be; towards 0: all alike.", (0.0, 1.0)),
    "cosine_mean": ("Mean cosine of tokens", "1: all tokens point the same way; 0: no more than by chance.", None),
    "entropy_normalised": ("Entropy, normalised", "1: attention is even; 0: every row looks at one key.", (0.0, 1.0)),
    "gap_max": ("Largest gap", "Between the two largest scores of a row; large gaps pass no gradient.", None),
}


def depth_lines(
    layers: pd.DataFrame,
    column: str,
    names: Sequence[str],
    moment: str = "",
    ends: tuple[float, float] | None = None,
) -> Chart:
    """Lines of a column of MEASURES; `layers` has report, layer and that column.

    `moment` is added to title and name if a page has several charts of one measure; `ends` replaces those of MEASURES.
    """
    title, caption, usual = MEASURES[column]
    ends = usual if ends is None else ends
    name = f"{column}-lines{f'-{moment}' if moment else ''}".replace(" ", "-")
    table = layers[["report", "layer", column]].rename(columns={column: "value"}).dropna()
    logarithmic = column == "residual_ratio" and bool((table["value"] < 0.01).any())
    scale: Spec = {"nice": True, "zero": False} if ends is None else {"domain": list(ends)}
    axis: Spec = {"tickCount": 5, "format": ".3~g"}
    if logarithmic:
        table["value"] = table["value"].clip(lower=SMALLEST)
        scale = {"type": "log", "domainMax": 1.0}
        axis = logarithmic_axis()
    depth = int(table["layer"].max())
    x = {
        "type": "quantitative",
        "scale": {"domain": [0.5, depth + 0.5], "nice": False, "zero": False},
        "axis": number_axis("layer", depth),
    }
    numbers = {"sequence": {"start": 1, "stop": depth + 1, "as": "layer"}}
    band = selection_band("layer", x, numbers, "datum.layer == layer")
    y = {"field": "value", "type": "quantitative", "title": None, "scale": scale, "axis": axis}
    dashes = {"domain": list(range(1, len(names) + 1)), "range": [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]]}
    tooltips = [*series_tooltip(names), *tooltip(layer=integer("layer"), value=title.lower())]
    colour = series_colour(names)
    encoding: Spec = {"x": {"field": "layer", **x}, "y": y, "tooltip": tooltips, **colour}
    widths = [5.0, 3.5, 2.5, 1.5] if len(names) > 1 else [2.0]  # so that equal lines show around each other
    dash: Spec = {"field": "report", "type": "nominal", "scale": dashes, "legend": colour["color"]["legend"]}
    lines: list[Spec] = [
        {
            "transform": [{"filter": f"datum.report == {number}"}],
            "mark": {"type": "line", "strokeCap": "butt", "strokeWidth": width},
            "encoding": {**encoding, "strokeDash": dash},
        }
        for number, width in enumerate(widths[: len(names)], start=1)
    ]
    points = {"mark": {"type": "point", "filled": True, "opacity": 1, "size": 30}, "encoding": encoding}
    spec = {
        "title": f"{title}, {moment}" if moment else title,
        "data": {"table": name},
        "params": parameters(layer=1, names=list(names)),
        "transform": series_names(names),
        "layer": [band, *lines, points],
    }
    return Chart(name.replace("_", "-"), full_width(spec, height=216), caption, {name: table})
