"""A layer x head heat map of any metric; a menu of the page selects the metric."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from .chart import Chart, Spec, full_width, gradient_legend, integer, parameters, tooltip

CAPTION = "A cell is a head, yellow is high; choose a cell to see that head below."
METRICS = {  # column: label in the menu, explanation
    "entropy_normalised": ("entropy, normalised", "mean entropy as a share of what the visible keys allow; 0: one key"),
    "entropy_mean": ("entropy, mean", "mean entropy of attention rows in nats; 0: one key"),
    "entropy_min": ("entropy, smallest", "entropy of the narrowest row, in nats"),
    "entropy_no_first": ("entropy without the first key", "the same with the first key left out, where sinks are"),
    "sink": ("sink", "share of the weight on the first visible key"),
    "sink_strongest": ("strongest key", "largest share of a sequence's weight that one key takes"),
    "gap_mean": ("gap, mean", "mean gap between the two largest scores of a row; softmax saturates where it is large"),
    "gap_max": ("gap, largest", "largest gap between the two largest scores of a row"),
    "spread_max": ("spread of a row, largest", "largest distance of a row's largest score from its mean; 0: dead"),
    "logit_max": ("largest score", "largest score before the softmax; a constant that softmax ignores moves it"),
    "logit_std": ("spread of scores", "standard deviation of the scores before the softmax"),
    "propagation_mean": ("signal propagation, mean", "share of positions whose signal reaches the query (ρ)"),
    "localisation": ("localisation", "how much the signal comes from few positions"),
    "qk_trace": ("QK trace", "trace of the query-key matrix W"),
    "qk_square": ("QK trace of the square", "trace of W W; negative where eigenvalues turn"),
    "qk_scale": ("QK scale", "trace of WᵀW, the squared size of the query-key matrix"),
    "qk_variance": ("QK variance", "spread of the eigenvalues of the symmetric part of W; small: concentrated"),
    "qk_spectral_norm": ("QK spectral norm", "largest factor by which W stretches a vector"),
    "xi": ("ξ", "mean of the eigenvalues of W relative to their size"),
    "eta": ("η", "size of the eigenvalues of W in units of the theory's scale"),
}


def metrics_of(heads: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """The metrics of a table: label and explanation by column."""
    columns = [*(name for name in METRICS if name in heads), *(name for name in heads if name not in METRICS)]
    return {
        str(name): metric_label(str(name))
        for name in columns
        if name not in ("layer", "name", "head") and heads[name].notna().any()
    }


def metric_label(metric: str) -> tuple[str, str]:
    """The label of a metric in a menu, and its explanation."""
    return METRICS.get(metric, (metric.replace("_", " "), ""))


def extents(tables: Iterable[pd.DataFrame]) -> dict[str, list[float]]:
    """Smallest and largest finite value of each metric over all tables, so that their maps share a colour scale."""
    heads = pd.concat(list(tables), ignore_index=True)
    finite = heads[list(metrics_of(heads))].replace([float("inf"), float("-inf")], float("nan"))
    ends = {str(name): (float(finite[name].min()), float(finite[name].max())) for name in finite}
    return {name: [low, high if high > low else low + 1.0] for name, (low, high) in ends.items() if low == low}


def head_map(
    heads: pd.DataFrame, depth: int, count: int, ends: dict[str, list[float]], name: str = "head-map"
) -> Chart:
    """The heat map; `ends` are the limits of each metric's colour scale."""
    first = next(iter(ends))
    titles = {metric: metric_label(metric)[0] for metric in ends}
    legend = gradient_legend(format=".3~g", tickCount=4)
    axis = {"labelAngle": 0, "ticks": False, "domain": False, "labelOverlap": "parity"}
    x = _ordinal("layer", depth) | {"axis": axis | {"title": "layer"}}
    y = _ordinal("head", count) | {"axis": axis | {"title": "head"}}
    domain = [{"expr": "extents[metric][0]"}, {"expr": "extents[metric][1]"}]
    cell = {
        "transform": [{"calculate": "datum[metric]", "as": "value"}, {"filter": "isValid(datum.value)"}],
        "mark": {"type": "rect", "style": "cell", "cursor": "pointer", "strokeWidth": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": {
                "field": "value",
                "type": "quantitative",
                "scale": {"domain": domain, "range": "heatmap", "clamp": True, "zero": False, "nice": False},
                "legend": legend,
            },
            "tooltip": tooltip(layer=integer("layer"), head=integer("head"), value="value"),
        },
    }
    frame = {
        "transform": [{"filter": "datum.layer == layer && datum.head == head"}],
        "mark": {"type": "rect", "filled": False, "stroke": "#D55E00", "strokeWidth": 3, "tooltip": None},
        "encoding": {"x": x, "y": y},
    }
    spec: Spec = {
        "title": {"text": {"expr": "upper(slice(titles[metric], 0, 1)) + slice(titles[metric], 1)"}},
        "data": {"table": name},
        "params": parameters(layer=1, head=1, metric=first, extents=ends, titles=titles),
        "layer": [cell, frame],
    }
    kept = heads[["layer", "head", *(metric for metric in ends if metric in heads)]]
    return Chart(name, full_width(spec, height=min(max(18 * count, 72), 420)), CAPTION, {name: kept})


def _ordinal(field: str, count: int) -> Spec:
    return {"field": field, "type": "ordinal", "scale": {"domain": list(range(1, count + 1)), "padding": 0}}
