"""Heads over training: a heat map of any metric, one column a measurement."""

from __future__ import annotations

import pandas as pd

from .chart import Chart, Spec, full_width, gradient_legend, integer, parameters, tooltip
from .head_map import metric_label

# Metrics that grow by factors: where their values span WIDE, colours are logarithmic, down to LEAST of the largest.
GROWING = {"logit_max", "gap_mean", "gap_max", "qk_scale"}
WIDE, LEAST = 1e3, 1e-5
CELLS = 60_000  # of a page; with more, measurements are left out evenly
LOWEST = {"entropy_normalised", "entropy_min", "entropy_mean", "residual_ratio"}  # where trouble is a small number
LAYERS = "A row is a layer, a column a measurement; of a layer's heads, the one that is worst off is shown."
HEADS = "The heads of the chosen layer; choose a cell to see that head over training."


def thinned(heads: pd.DataFrame) -> pd.DataFrame:
    """The table with so few measurements that a page can show it; first and last are kept."""
    steps = sorted(heads["step"].unique())
    per_step = max(1, len(heads) // max(1, len(steps)))
    most = max(10, CELLS // per_step)
    if len(steps) <= most:
        return heads
    kept = {steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)}
    return heads[heads["step"].isin(kept)]


def step_maps(
    heads: pd.DataFrame, ends: dict[str, list[float]], number: int, title: str, warned: int | None = None
) -> list[Chart]:
    """The map of layers and that of the chosen layer's heads; `number` tells the runs of a page apart.

    `warned` is a measured step to mark.
    """
    table = f"steps-{number}"
    steps = [int(step) for step in sorted(heads["step"].unique())]
    kept = heads[["step", "layer", "head", *(metric for metric in ends if metric in heads)]]
    lowest = [metric for metric in ends if metric in LOWEST]
    worst: list[Spec] = [
        {"calculate": f"indexof({lowest}, metric) >= 0 ? -datum.value : datum.value", "as": "trouble"},
        {
            "window": [{"op": "rank", "as": "place"}],
            "sort": [{"field": "trouble", "order": "descending"}],
            "groupby": ["step", "layer"],
        },
        {"filter": "datum.place == 1"},
    ]
    chosen: list[Spec] = [{"filter": "datum.layer == layer"}]
    of_layers = _map(table, worst, "layer", sorted(kept["layer"].unique()), steps, ends, title, warned)
    after = "', layer ' + layer"
    of_heads = _map(table, chosen, "head", sorted(kept["head"].unique()), steps, ends, title, warned, after)
    return [
        Chart(f"layers-over-steps-{number}", of_layers, LAYERS, {table: kept}),
        Chart(f"heads-over-steps-{number}", of_heads, HEADS, {table: kept}),
    ]


def _map(
    table: str,
    filters: list[Spec],
    rows: str,
    numbers: list[int],
    steps: list[int],
    ends: dict[str, list[float]],
    title: str,
    warned: int | None,
    after: str = "''",
) -> Spec:
    axis = {"labelAngle": 0, "ticks": False, "domain": False, "labelOverlap": "parity", "labelSeparation": 8}
    wide = {metric: metric in GROWING and WIDE * max(0.0, low) < high for metric, (low, high) in ends.items()}
    floors = {metric: max(low, LEAST * high) for metric, (low, high) in ends.items()}
    domain = [{"expr": _scaled(f"extents[metric][{end}]")} for end in (0, 1)]
    unscaled = "wide[metric] ? pow(10, datum.value) : datum.value"
    label = f"format({unscaled}, abs({unscaled}) < 1000 ? '.3~g' : ',.0f')"
    x = {"field": "step", "type": "ordinal", "scale": {"domain": steps, "padding": 0}, "axis": axis | {"title": "step"}}
    places = [int(number) for number in numbers]
    y = {"field": rows, "type": "ordinal", "scale": {"domain": places, "padding": 0}, "axis": axis | {"title": rows}}
    colour = {
        "field": "colour",
        "type": "quantitative",
        "scale": {"domain": domain, "range": "heatmap", "clamp": True, "zero": False, "nice": False},
        "legend": gradient_legend(labelExpr=label, tickCount=4),
    }
    tips = tooltip(step=integer("step"), layer=integer("layer"), head=integer("head"), value="value")
    cells = {
        "transform": filters,
        "mark": {"type": "rect", "cursor": "pointer"},
        "encoding": {"x": x, "y": y, "color": colour, "tooltip": tips},
    }
    frame = {
        "transform": [*filters, {"filter": f"datum.{rows} == {rows}"}, {"aggregate": [], "groupby": [rows]}],
        "mark": {"type": "rect", "filled": False, "stroke": "#D55E00", "strokeWidth": 2.5, "tooltip": None},
        "encoding": {"x": {"value": 0}, "x2": {"value": "width"}, "y": y},
    }
    labels = {metric: metric_label(metric)[0] for metric in ends}
    spec: Spec = {
        "title": {
            "text": {"expr": f"upper(slice(titles[metric], 0, 1)) + slice(titles[metric], 1) + {after}"},
            **({"subtitle": title} if title else {}),
        },
        "data": {"table": table},
        "params": parameters(
            layer=1, head=1, metric=next(iter(ends)), extents=ends, wide=wide, floors=floors, titles=labels
        ),
        "transform": [
            {"calculate": "datum[metric]", "as": "value"},
            {"filter": "isValid(datum.value)"},
            {"calculate": _scaled("datum.value"), "as": "colour"},
        ],
        "layer": [cells, frame, *([] if warned is None else [_warning(warned, x)])],
    }
    return full_width(spec, height=min(max(16 * len(places), 96), 420))


def _scaled(value: str) -> str:
    """An expression of Vega: the value, or its logarithm where the chosen metric spans a wide range."""
    return f"wide[metric] ? log(max({value}, floors[metric])) / LN10 : {value}"


def _warning(step: int, x: Spec) -> Spec:
    return {
        "data": {"values": [{"step": step}]},
        "transform": [{"calculate": "'first warning'", "as": "what"}],
        "mark": {"type": "rule", "stroke": "white", "strokeWidth": 3, "strokeDash": [4, 3]},
        "encoding": {"x": x, "tooltip": [{"field": "what", "title": "what"}, *tooltip(step=integer("step"))]},
    }
