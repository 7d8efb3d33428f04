"""Violins from histograms: their outlines, mode, median and mean, and the specification that draws them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .chart import Spec, full_width, integer, number_axis, parameters, selection_band, tooltip

HALF = 0.42  # maximum half width of a violin, in units of the distance between two; less if there are few
STATISTICS = ("mode", "median", "mean")


def outlines(histogram: pd.DataFrame, by: list[str], width: float, coarser: int = 1) -> pd.DataFrame:
    """Share of each bin by its centre, one outline for each combination of `by`, with zeros around filled bins.

    `histogram` has the columns of `by`, `low` and `count`, without empty bins; `width` is that of its bins, of which
    `coarser` are merged into one.

    >>> table = pd.DataFrame({"layer": 1, "low": [0.0, 0.3], "count": [3, 1]})
    >>> outlines(table, ["layer"], 0.1)["share"].tolist()
    [0.0, 0.0, 0.75, 0.0, 0.0, 0.25, 0.0, 0.0]
    """
    bins = np.rint(histogram["low"] / width).astype(int) // coarser
    counted = histogram.assign(bin=bins).groupby([*by, "bin"], as_index=False)["count"].sum()
    around = [counted.assign(bin=counted["bin"] + step, count=0) for step in (-2, -1, 1, 2)]
    filled = pd.concat([counted, *around]).groupby([*by, "bin"], as_index=False)["count"].sum()
    share = filled["count"] / filled.groupby(by)["count"].transform("sum")
    middle = ((filled["bin"] + 0.5) * coarser * width).round(6)
    return filled[by].assign(value=middle, share=share)


def statistics(histogram: pd.DataFrame, by: list[str], width: float) -> pd.DataFrame:
    """Mode, median and mean of each histogram, exact to the width of a bin.

    >>> table = pd.DataFrame({"layer": 1, "low": [0.0, 0.5], "count": [3, 1]})
    >>> statistics(table, ["layer"], 0.5).round(3).to_dict("records")
    [{'layer': 1, 'mode': 0.25, 'median': 0.333, 'mean': 0.375}]
    """
    rows = []
    for key, group in histogram.groupby(by):
        low, count = group["low"].to_numpy(), group["count"].to_numpy()
        below = count.cumsum()
        index = int(np.searchsorted(below, below[-1] / 2))
        inside = (below[-1] / 2 - (below[index] - count[index])) / count[index]
        mean = float(((low + width / 2) * count).sum() / below[-1])
        numbers = (float(low[count.argmax()]) + width / 2, float(low[index] + inside * width), mean)
        rows.append((*key, *numbers))
    return pd.DataFrame(rows, columns=[*by, *STATISTICS])


def violins(
    by: str,
    count: int,
    shapes: str,
    marks: str,
    value: tuple[str, tuple[float, float]],
    title: str | dict[str, str],
    only: list[str],
    selected: str,
    threshold: float | None = None,
    **start: object,
) -> Spec:
    """The specification of violins side by side.

    Args:
        by: column ("layer" or "head") with one violin per value.
        count: number of violins.
        shapes: name of the table of outlines.
        marks: name of the table of statistics.
        value: title and domain of the value axis.
        title: title of the chart.
        only: conditions that select the rows to draw.
        selected: condition for the violin that is selected in the page.
        threshold: a value at which a dashed line is drawn.
        **start: parameters and their initial values.
    """
    unit, domain = value
    filters = [{"filter": condition} for condition in only]
    x_scale = {"domain": [0.5, count + 0.5], "nice": False, "zero": False}
    x = {"type": "quantitative", "scale": x_scale, "axis": number_axis(by, count)}
    y = {"type": "quantitative", "scale": {"domain": list(domain), "nice": False, "zero": False}, "title": unit}
    tooltips = tooltip(**{by: integer(by)}, mode="mode", median="median", mean="mean")
    band = selection_band(by, x, {"table": marks}, selected, filters, tooltips)
    half = f"{HALF * min(1.0, count / 8):.3f} * datum.smooth / datum.widest"
    area: Spec = {
        "data": {"table": shapes},
        "transform": [
            *filters,
            {
                "window": [{"op": "mean", "field": "share", "as": "smooth"}],
                "frame": [-1, 1],
                "sort": [{"field": "value"}],
                "groupby": [by],
            },
            {"joinaggregate": [{"op": "max", "field": "smooth", "as": "widest"}], "groupby": [by]},
            {"calculate": f"datum.{by} - {half}", "as": "left"},
            {"calculate": f"datum.{by} + {half}", "as": "right"},
        ],
        "mark": {"type": "area", "orient": "horizontal", "style": "violin", "clip": True, "tooltip": None},
        "encoding": {
            "y": {"field": "value", **y},
            "x": {"field": "left", **x},
            "x2": {"field": "right"},
            "detail": {"field": by},
        },
    }
    # each is told from the violin and from the page, light or dark: a light inside and a dark edge
    colours = {"domain": list(STATISTICS), "range": ["#FFB000", "#D6117F", "#FFFFFF"]}
    edges = {"domain": list(STATISTICS), "range": ["#3B2A00", "#D6117F", "#10241D"]}
    shapes_of = {"domain": list(STATISTICS), "range": ["diamond", "stroke", "circle"]}
    legend = {"title": None, "orient": "top", "direction": "horizontal", "symbolOpacity": 1}
    points: Spec = {
        "data": {"table": marks},
        "transform": [*filters, {"fold": ["median", "mode", "mean"], "as": ["statistic", "at"]}],
        "mark": {"type": "point", "filled": True, "opacity": 1, "cursor": "pointer"},
        "encoding": {
            "x": {"field": by, **x},
            "y": {"field": "at", **y},
            "stroke": {"field": "statistic", "type": "nominal", "scale": edges, "legend": legend},
            "fill": {"field": "statistic", "type": "nominal", "scale": colours, "legend": legend},
            "shape": {"field": "statistic", "type": "nominal", "scale": shapes_of, "legend": legend},
            "size": {"condition": {"test": "datum.statistic == 'median'", "value": 260}, "value": 44},
            "tooltip": tooltips,
        },
    }
    lines: list[Spec] = []
    if threshold is not None:
        mark = {"type": "rule", "style": "warning", "strokeDash": [5, 4], "tooltip": None}
        lines = [{"data": {"values": [{}]}, "mark": mark, "encoding": {"y": {"datum": threshold, **y}}}]
    layers = [band, area, *lines, points]
    return full_width({"title": {"text": title}, "params": parameters(**start), "layer": layers}, height=240)
