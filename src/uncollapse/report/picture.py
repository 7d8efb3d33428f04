"""Charts of a page as pictures: side by side in one PNG for a slide, or one of them for a notebook."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

import vl_convert

from .chart import Chart, Spec, parameters
from .theme import config

INDEPENDENT = {"color": "independent", "strokeDash": "independent"}  # every panel has its own legend
PIXELS = 2  # of the picture per pixel of the chart, for high-resolution screens


def picture(charts: Sequence[Chart], widths: Sequence[int], height: int) -> bytes:
    """The charts as a PNG, in light colours."""
    theme = config("light")
    theme["title"] = theme["title"] | {"limit": 600}  # that of pages is an expression in `width`, which panels lack
    spec = {
        "hconcat": [_panel(chart, width, height) for chart, width in zip(charts, widths, strict=True)],
        "params": parameters(**_values(charts)),
        "spacing": 36,
        "resolve": {"scale": INDEPENDENT, "legend": INDEPENDENT},
        "config": theme | {"padding": 16},
    }
    return bytes(vl_convert.vegalite_to_png(spec, scale=PIXELS))


def image_html(chart: Chart, words: str, width: int = 620) -> str:
    """A chart as an image that needs no script; `words` say what it shows."""
    spec = chart.standalone(config("light")) | {"width": width}
    spec["params"] = parameters(**_values([chart]))
    svg = base64.b64encode(vl_convert.vegalite_to_svg(spec).encode()).decode()
    return f'<img alt="{escape(words)}" style="max-width:100%" src="data:image/svg+xml;base64,{svg}">'


def _values(charts: Sequence[Chart]) -> Spec:
    """The parameters of all charts; no layer is selected in a picture."""
    values = {p["name"]: p["value"] for chart in charts for p in chart.spec.get("params", [])}
    return values | ({"layer": 0} if "layer" in values else {})


def _panel(chart: Chart, width: int, height: int) -> Spec:
    """A chart of fixed size; its parameters are those of the whole picture."""
    own = ("$schema", "autosize", "params")
    return {k: v for k, v in chart.standalone().items() if k not in own} | {"width": width, "height": height}
