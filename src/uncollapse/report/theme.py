"""Colours and fonts of charts on light and dark pages; the palettes are safe for colour-blind readers."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's palette, for charts that stay light.
OKABE_ITO = ["#D55E00", "#E69F00", "#CC79A7", "#56B4E9", "#0072B2", "#009E73"]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MARGIN = 58  # pixels left of every plot, so that the layers of all charts line up

LIGHT = {"ink": "#1f2430", "soft": "#565d6b", "line": "#d9dde5", "surface": "#ffffff", "shape": "#8fb8d6"}
DARK = {"ink": "#e8eaf0", "soft": "#aab1bf", "line": "#3a414e", "surface": "#1b1f27", "shape": "#3f7ba6"}
# One colour per report, for up to eight reports; the same as in page.css.
SERIES = {
    "light": ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#B07D00", "#7A5195", "#6B6B6B"],
    "dark": ["#56B4E9", "#E69F00", "#2FC79B", "#E39AC4", "#F0E442", "#A6B1FF", "#FF8A80", "#B0B7C3"],
}
# From collapsed (orange) to healthy (blue) through a neutral middle.
DEPTH = {
    "light": ["#C95000", "#E9A56E", "#E6E8EC", "#7FB4D8", "#00629B"],
    "dark": ["#F07A1C", "#A8622F", "#39404C", "#2F76A6", "#56B4E9"],
}
WARNING = {"light": "#C95000", "dark": "#F58A36"}


def config(scheme: str) -> dict[str, Any]:
    """Vega-Lite's configuration for "light" or "dark"."""
    colour = DARK if scheme == "dark" else LIGHT
    series = SERIES[scheme]
    letters = {"labelFont": FONT, "titleFont": FONT, "labelColor": colour["soft"], "titleColor": colour["soft"]}
    return {
        "background": colour["surface"],
        "font": FONT,
        "padding": {"left": 2, "top": 4, "right": 8, "bottom": 2},
        "view": {"stroke": None},
        "axis": {
            **letters,
            "titleFontWeight": "normal",
            "titleFontSize": 12,
            "labelFontSize": 11,
            "gridColor": colour["line"],
            "gridOpacity": 0.6,
            "domainColor": colour["line"],
            "tickColor": colour["line"],
        },
        "axisY": {"minExtent": MARGIN - 18},
        "legend": {**letters, "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 11, "symbolSize": 70},
        "title": {
            "font": FONT,
            "fontSize": 13,
            "fontWeight": 600,
            "color": colour["ink"],
            "anchor": "start",
            "limit": {"expr": "width + 30"},
            "subtitleColor": colour["soft"],
        },
        "range": {
            "category": series,
            "diverging": DEPTH[scheme],
            "heatmap": {"scheme": "viridis"},
            "ramp": {"scheme": "viridis"},
        },
        "style": {
            "violin": {"color": colour["shape"]},
            "series": {"color": series[0]},
            "chosen": {"color": colour["ink"]},
            "frame": {"color": colour["ink"]},
            "cell": {"stroke": colour["surface"]},
            "zero": {"color": colour["soft"]},
            "warning": {"color": WARNING[scheme]},
            "cell-text": {"font": FONT, "fontSize": 10},
        },
    }
