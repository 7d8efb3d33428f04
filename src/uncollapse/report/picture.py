"""Charts of a page beside each other as one picture, for a README or a slide."""

from __future__ import annotations

from collections.abc import Sequence

import vl_convert

from .chart import Chart, Spec, parameters
from .theme import config

OWN = {"color": "independent", "strokeDash": "independent"}  # every panel has a legend of its own
SCALE = 2  # pixels of the picture for each of the chart, for sharp screens


def picture(charts: Sequence[Chart], widths: Sequence[int], height: int) -> bytes:
    """The charts as a PNG, in light colours."""
    paper = config("light")
    # Panels have no common width, which the pages' limit of titles asks for.
    paper["title"] = paper["title"] | {"limit": 600}
    spec = {
        "hconcat": [_panel(chart, width, height) for chart, width in zip(charts, widths, strict=True)],
        "params": parameters(**_values(charts)),
        "spacing": 36,
        "resolve": {"scale": OWN, "legend": OWN},
        "config": paper | {"padding": 16},
    }
    return bytes(vl_convert.vegalite_to_png(spec, scale=SCALE))


def _values(charts: Sequence[Chart]) -> Spec:
    """The named values of all charts; a picture has no chosen layer."""
    values = {p["name"]: p["value"] for chart in charts for p in chart.spec.get("params", [])}
    return values | ({"layer": 0} if "layer" in values else {})


def _panel(chart: Chart, width: int, height: int) -> Spec:
    """A chart of fixed size; its named values are those of the whole picture."""
    own = ("$schema", "autosize", "params")
    return {k: v for k, v in chart.alone().items() if k not in own} | {"width": width, "height": height}
