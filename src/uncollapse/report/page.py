"""One self-contained HTML page: words, charts that answer each other, tables. Opens from disk, needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import vl_convert

from .chart import Chart, table_data
from .theme import config

if TYPE_CHECKING:
    import altair as alt

GENERATOR = '<meta name="generator" content="uncollapse">'  # by which a page knows its own earlier output


@dataclass(frozen=True)
class Section:
    """A heading, a menu or two, and charts: below each other, or in columns where there is room."""

    title: str
    charts: Sequence[Chart]
    controls: str = ""  # HTML
    layout: Literal["rows", "pairs", "columns"] = "rows"  # one, two, three beside each other
    aid: str = ""  # how to read all of its charts, where they do not say so themselves
    after: str = ""  # HTML below the charts

    def html(self) -> str:
        """The section without its drawings."""
        figures = "\n".join(_figure(chart) for chart in self.charts)
        aid = f'<p class="aid">{escape(self.aid)}</p>' if self.aid else ""
        return (
            f'<section class="card"><div class="head"><h2>{escape(self.title)}</h2>{self.controls}</div>\n'
            f'<div class="{self.layout}">\n{figures}\n</div>{aid}{self.after}</section>'
        )


def document(
    title: str,
    lead: str,
    sections: Sequence[Section],
    choice: Mapping[str, Any],
    rest: str = "",
    footer: str = "",
    assets: Sequence[str] = (),
) -> str:
    """The HTML of a page; `lead` and `rest` are HTML with everything escaped, the others are plain text.

    `assets` names further style sheets and scripts of this room, such as claims.css and claims.js.

    `choice` holds the values that the charts of the page share and its menus change: layer, head, metric, ...
    """
    charts = [chart for section in sections for chart in section.charts]
    tables = {name: table_data(table) for chart in charts for name, table in chart.tables.items()}
    settings = {"choice": dict(choice), "configs": {scheme: config(scheme) for scheme in ("light", "dark")}}
    scripts = [_library(), _asset("page.js"), *(_asset(name) for name in assets if name.endswith(".js"))]
    style = "\n".join(_asset(name) for name in ("page.css", *assets) if name.endswith(".css"))
    # Only these scripts may run and nothing may be loaded, whatever a name in the data tries.
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
    reading_aid: str,
    table: pd.DataFrame,
    source: str,
) -> str:
    """A page of sentences, one chart (or panels beside each other) and one table, whose numbers stand as given."""
    panels = getattr(chart, "hconcat", [chart])
    drawings = [
        _fluid(panel, f"chart{n}", reading_aid if n == len(panels) else "") for n, panel in enumerate(panels, 1)
    ]
    section = Section(heading, drawings, layout="rows" if len(panels) == 1 else "pairs")
    return document(title, bullet_list(sentences), [section], {}, table_html(table, "The numbers"), source)


def _fluid(panel: alt.TopLevelMixin, name: str, reading_aid: str) -> Chart:
    """A chart as wide as there is room, also on a phone."""
    narrow = {"legend": {"orient": "bottom", "columns": 2}, "axisX": {"labelOverlap": "parity"}}
    spec = panel.properties(width="container", autosize={"type": "fit-x", "contains": "padding"}).to_dict()
    return Chart(name, spec | {"config": narrow}, reading_aid)


def menu(name: str, text: str, options: Mapping[Any, tuple[str, str]], chosen: Any) -> str:
    """A menu that changes the shared value `name`; options are value -> text and explanation."""
    items = "".join(
        f'<option value="{escape(str(value))}" data-words="{escape(words)}"{" selected" if value == chosen else ""}>'
        f"{escape(label)}</option>"
        for value, (label, words) in options.items()
    )
    explained = any(words for _, words in options.values())
    note = f'<span class="words" data-words-of="{escape(name)}"></span>' if explained else ""
    return f'<label>{escape(text)} <select data-choice="{escape(name)}">{items}</select></label>{note}'


def table_html(table: pd.DataFrame, title: str) -> str:
    """A table that is shown on request."""
    cells = table.to_html(escape=True, border=0, index=False)
    return (
        f'<details class="card numbers"><summary>{escape(title)}</summary><div class="scroll">{cells}</div></details>'
    )


def open_table(table: pd.DataFrame, title: str, aid: str = "") -> str:
    """A table in sight, on a card of its own."""
    return f'<section class="card"><h2>{escape(title)}</h2>{named_rows(table, aid)}</section>'


def named_rows(table: pd.DataFrame, aid: str = "") -> str:
    """A table whose first column names its rows; a cell may have several lines."""

    def row(cells: Iterable[Any], tag: str) -> str:
        lines = (escape(str(cell)).replace("\n", "<br>") for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in lines) + "</tr>"

    body = "".join(row(cells, "td") for cells in table.itertuples(index=False))
    note = f'<p class="aid">{escape(aid)}</p>' if aid else ""
    return (
        f'<div class="scroll"><table class="named"><thead>{row(table.columns, "th")}</thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def bullet_list(sentences: Iterable[str], kind: str = "") -> str:
    """Sentences as a list; nothing if there are none."""
    items = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{kind}">\n{items}\n</ul>' if items else ""


def write(html: str, path: str | os.PathLike[str], force: bool) -> Path:
    """Write a page under a temporary name and rename it; only an earlier page is replaced without `force`."""
    file = Path(path)
    if file.is_dir():
        raise FileExistsError(f"{file} is a folder; give the path of a file, such as {file / 'report.html'}.")
    if file.exists() and not force and not _is_page(file):
        raise FileExistsError(
            f"{file} exists and is not a page written by uncollapse; give another path, or force=True to replace it."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(html)
        os.chmod(draft, 0o644)
        os.replace(draft, file)
    finally:
        Path(draft).unlink(missing_ok=True)
    return file


def _is_page(file: Path) -> bool:
    with file.open("rb") as stream:
        return GENERATOR.encode() in stream.read(4096)


def _figure(chart: Chart) -> str:
    name = escape(chart.name)
    return (
        f'<figure><div class="chart" id="{name}"></div>'
        f"{f'<figcaption>{escape(chart.aid)}</figcaption>' if chart.aid else ''}</figure>"
    )


def _json(name: str, value: Any) -> str:
    """Data in a page; no character that could end the script element is left."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed as vl-convert bundles them; takes seconds, so once a process."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
