"""One self-contained HTML page of text, linked charts and tables; opens from disk and needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import vl_convert

from uncollapse.files import write as write_file

from .chart import Chart, table_data
from .theme import config

if TYPE_CHECKING:
    import altair as alt

GENERATOR = '<meta name="generator" content="uncollapse">'  # marks pages that may be replaced


@dataclass(frozen=True)
class Section:
    """A heading, menus and charts, in one or more columns."""

    title: str
    charts: Sequence[Chart]
    controls: str = ""  # HTML
    layout: Literal["rows", "pairs", "columns"] = "rows"  # one, up to two, up to three columns
    caption: str = ""  # how to read its charts, if they have no caption of their own
    after: str = ""  # HTML below the charts
    before: str = ""  # HTML above them

    def html(self) -> str:
        """The section; the page's script draws the charts into it."""
        figures = "\n".join(_figure(chart) for chart in self.charts)
        caption = f'<p class="aid">{escape(self.caption)}</p>' if self.caption else ""
        return (
            f'<section class="card"><div class="head"><h2>{escape(self.title)}</h2>{self.controls}</div>{self.before}\n'
            f'<div class="{self.layout}">\n{figures}\n</div>{caption}{self.after}</section>'
        )


def document(
    title: str,
    lead: str,
    sections: Sequence[Section],
    choice: Mapping[str, Any],
    rest: str = "",
    footer: str = "",
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
) -> str:
    """The HTML of a page.

    Args:
        title: plain text.
        lead: HTML above the sections, already escaped.
        sections: the sections in their order.
        choice: values that the charts share and the menus change, such as layer, head and metric.
        rest: HTML below the sections, already escaped.
        footer: plain text.
        styles: further CSS.
        scripts: further JavaScript.
    """
    charts = [chart for section in sections for chart in section.charts]
    tables = {name: table_data(table) for chart in charts for name, table in chart.tables.items()}
    settings = {"choice": dict(choice), "configs": {scheme: config(scheme) for scheme in ("light", "dark")}}
    scripts = [_library(), _asset("page.js"), *scripts]
    style = "\n".join([_asset("page.css"), *styles])
    # Only these scripts may run and nothing may be loaded, whatever a name in the data contains.
    sources = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {sources} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )
    body = "\n".join(section.html() for section in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
{GENERATOR}
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{lead}
{body}
{rest}
<footer>{escape(footer)}</footer>
</main>
<noscript>The charts of this page need JavaScript.</noscript>
{_json("tables", tables)}
{_json("charts", {chart.name: chart.spec for chart in charts})}
{_json("settings", settings)}
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def page(
    title: str,
    heading: str,
    sentences: Sequence[str],
    chart: alt.TopLevelMixin,
    caption: str,
    table: pd.DataFrame,
    source: str,
) -> str:
    """A page of sentences, one Altair chart (or panels side by side) and one table, shown without rounding."""
    panels = getattr(chart, "hconcat", [chart])
    drawings = [_fluid(panel, f"chart{n}", caption if n == len(panels) else "") for n, panel in enumerate(panels, 1)]
    section = Section(heading, drawings, layout="rows" if len(panels) == 1 else "pairs")
    return document(title, bullet_list(sentences), [section], {}, table_html(table, "The numbers"), source)


def _fluid(panel: alt.TopLevelMixin, name: str, caption: str) -> Chart:
    """A chart that fills the width of its container, also on a phone."""
    narrow = {"legend": {"orient": "bottom", "columns": 2}, "axisX": {"labelOverlap": "parity"}}
    spec = panel.properties(width="container", autosize={"type": "fit-x", "contains": "padding"}).to_dict()
    return Chart(name, spec | {"config": narrow}, caption)


def menu(name: str, text: str, options: Mapping[Any, tuple[str, str]], chosen: Any) -> str:
    """A menu that changes the shared value `name`; `options` has a label and an explanation by value."""
    items = "".join(
        f'<option value="{escape(str(value))}" data-words="{escape(words)}"{" selected" if value == chosen else ""}>'
        f"{escape(label)}</option>"
        for value, (label, words) in options.items()
    )
    explained = any(words for _, words in options.values())
    note = f'<span class="words" data-words-of="{escape(name)}"></span>' if explained else ""
    return f'<label>{escape(text)} <select data-choice="{escape(name)}">{items}</select></label>{note}'


def table_html(table: pd.DataFrame, title: str) -> str:
    """A table that is folded away."""
    cells = table.to_html(escape=True, border=0, index=False)
    return (
        f'<details class="card numbers"><summary>{escape(title)}</summary><div class="scroll">{cells}</div></details>'
    )


def open_table(table: pd.DataFrame, title: str, caption: str = "") -> str:
    """A visible table with a title."""
    return f'<section class="card"><h2>{escape(title)}</h2>{named_rows(table, caption)}</section>'


def named_rows(table: pd.DataFrame, caption: str = "") -> str:
    """A visible table whose first column names the rows; cells may have several lines."""

    def row(cells: Iterable[Any], tag: str) -> str:
        lines = (escape(str(cell)).replace("\n", "<br>") for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in lines) + "</tr>"

    body = "".join(row(cells, "td") for cells in table.itertuples(index=False))
    note = f'<p class="aid">{escape(caption)}</p>' if caption else ""
    return (
        f'<div class="scroll"><table class="named"><thead>{row(table.columns, "th")}</thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def bullet_list(sentences: Iterable[str], kind: str = "") -> str:
    """Sentences as a list; empty if there are none."""
    items = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{kind}">\n{items}\n</ul>' if items else ""


def series_cards(names: Sequence[str], bodies: Sequence[str]) -> str:
    """One card per series, with its colour and name above its body; bodies are HTML."""
    cards = "\n".join(
        f'<div><h2><span class="key" style="background: var(--series-{number})"></span>{escape(name)}</h2>{body}</div>'
        for number, (name, body) in enumerate(zip(names, bodies, strict=True), start=1)
    )
    return f'<div class="reports">{cards}</div>'


def about_html(text: str) -> str:
    """A line in small print."""
    return f'<p class="about">{escape(text)}</p>'


def notes_html(notes: Iterable[str]) -> str:
    """One box per note."""
    return "".join(f'<div class="verdict noted"><p><b>○</b> {escape(note)}</p></div>' for note in notes)


def write(html: str, path: str | os.PathLike[str], force: bool) -> Path:
    """Write a page to a file; without `force` only an earlier page is replaced."""
    file = Path(path)
    if file.is_dir():
        raise FileExistsError(f"{file} is a folder; give the path of a file, such as {file / 'report.html'}.")
    if file.exists() and not force and not _is_page(file):
        raise FileExistsError(
            f"{file} exists and is not a page written by uncollapse; give another path, or force=True to replace it."
        )
    write_file(file, html)
    return file


def _is_page(file: Path) -> bool:
    with file.open("rb") as stream:
        return GENERATOR.encode() in stream.read(4096)


def _figure(chart: Chart) -> str:
    name = escape(chart.name)
    return (
        f'<figure><div class="chart" id="{name}"></div>'
        f"{f'<figcaption>{escape(chart.caption)}</figcaption>' if chart.caption else ''}</figure>"
    )


def _json(name: str, value: Any) -> str:
    """Data as a script element; characters that could end the element are escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed as bundled by vl-convert, which takes seconds."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
