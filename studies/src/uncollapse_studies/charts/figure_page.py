"""The page of one figure: findings, chart, caption and main numbers."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from uncollapse.report.chart import Chart as FigureChart
from uncollapse.report.page import Section, bullet_list, document, table_html
from uncollapse.report.theme import OKABE_ITO, config

Drawing = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart

VERMILLION, ORANGE, PINK, SKY, BLUE, GREEN = OKABE_ITO
BLACK = "#000000"
SEAMLESS = 1.06  # cells of a heat map overlap slightly, or gaps show between them


def figure_page(
    title: str, sentences: Sequence[str], chart: Drawing, reading_aid: str, summary: pd.DataFrame, source: str
) -> str:
    """The HTML of a figure; texts are escaped, and numbers are shown as in the table."""
    # The title limit of pages is an expression in `width`, which panels lack. The colours of a figure are for print, so
    # it stays light on a dark page.
    theme = config("light")
    theme["title"] = theme["title"] | {"limit": 1200}
    drawing = FigureChart("figure", chart.to_dict() | {"config": theme}, reading_aid)
    return document(
        title,
        bullet_list(sentences),
        [Section("The figure", [drawing])],
        {},
        table_html(summary, "Main numbers"),
        source,
    )


def heading(text: str, subtitle: str) -> alt.TitleParams:
    """Title and subtitle of a chart."""
    return alt.TitleParams(text, subtitle=subtitle, anchor="start", fontSize=15, subtitleFontSize=12, offset=12)
