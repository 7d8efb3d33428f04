"""The page of one figure: what it shows, the chart, how to read it, its main numbers. Needs no network."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from uncollapse.report.chart import Chart as FigureChart
from uncollapse.report.depth_chart import COLOURS
from uncollapse.report.page import Section, bullet_list, document, table_html
from uncollapse.report.theme import config

Drawing = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart

VERMILLION, ORANGE, PINK, SKY, BLUE, GREEN = COLOURS  # Okabe and Ito's colours
BLACK = "#000000"
SEAMLESS = 1.06  # cells of a map overlap a little, or the paper shows between them


def figure_page(
    title: str, sentences: Sequence[str], chart: Drawing, reading_aid: str, summary: pd.DataFrame, source: str
) -> str:
    """The HTML of a figure; every text is escaped, and numbers stand as the table gives them."""
    # Panels beside each other have no common width, which the pages' limit of titles asks for. The colours of a figure
    # are for paper, so it stays light on a dark page.
    paper = config("light")
    paper["title"] = paper["title"] | {"limit": 1200}
    drawing = FigureChart("figure", chart.to_dict() | {"config": paper}, reading_aid)
    return document(
        title,
        bullet_list(sentences),
        [Section("The figure", [drawing])],
        {},
        table_html(summary, "Main numbers"),
        source,
    )


def heading(text: str, subtitle: str) -> alt.TitleParams:
    """A chart's title, with a line on how to read it."""
    return alt.TitleParams(text, subtitle=subtitle, anchor="start", fontSize=15, subtitleFontSize=12, offset=12)
