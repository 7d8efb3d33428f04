"""The page of one figure: what it shows, the chart, how to read it, its main numbers. Needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import altair as alt
import pandas as pd

from .depth_chart import COLOURS

Drawing = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart

VERMILLION, ORANGE, PINK, SKY, BLUE, GREEN = COLOURS  # Okabe and Ito's colours
BLACK = "#000000"
SEAMLESS = 1.06  # cells of a map overlap a little, or the paper shows between them

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2430; background: #fff; max-width: 72rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } p.aid, footer { color: #5b6270; font-size: .9rem; }
.chart { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { text-align: right; padding: .25rem .8rem; border-bottom: 1px solid #dfe3ea; white-space: nowrap; }
"""


def figure_page(
    title: str, sentences: Sequence[str], chart: Drawing, reading_aid: str, summary: pd.DataFrame, source: str
) -> str:
    """The HTML of a figure; every text is escaped, and numbers stand as the table gives them."""
    items = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    drawing = chart.to_html(inline=True, fullhtml=False, embed_options={"actions": True})
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<ul>
{items}
</ul>
<div class="chart">{drawing}</div>
<p class="aid">{escape(reading_aid)}</p>
{summary.to_html(escape=True, border=0, index=False)}
<footer>{escape(source)}</footer>
</body>
</html>
"""


def heading(text: str, subtitle: str) -> alt.TitleParams:
    """A chart's title, with a line on how to read it."""
    return alt.TitleParams(text, subtitle=subtitle, anchor="start", fontSize=15, subtitleFontSize=12, offset=12)
