"""One self-contained HTML page: headings, sentences, charts, tables. Opens from disk, needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import altair as alt
import pandas as pd

STYLE = """
:root { color-scheme: light; --ink: #1f2430; --soft: #5b6270; --paper: #fff; --line: #dfe3ea; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } p.aid, footer { color: var(--soft); font-size: .9rem; }
.chart { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { text-align: right; padding: .25rem .8rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
"""


def page(
    title: str, sentences: Sequence[str], chart: alt.TopLevelMixin, reading_aid: str, table: pd.DataFrame, source: str
) -> str:
    """The HTML of a page; every text is escaped, and numbers stand as the table gives them."""
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
{table.to_html(escape=True, border=0, index=False)}
<footer>{escape(source)}</footer>
</body>
</html>
"""
