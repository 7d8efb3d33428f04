"""The page of the audit: an overview, filters and one card per claim, from the record of `reproduce claims`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from uncollapse.report.chart import Chart
from uncollapse.report.page import Section, document

from .claims_chart import COLOURS, claim_chart
from .formula import formula_html

Row = Mapping[str, Any]
VERDICTS = tuple(COLOURS)
STANDS = "What the paper concludes from it stands in the right form."
FALLS = "What the paper concludes from it does not stand."


@dataclass(frozen=True)
class Cards(Section):
    """One card per claim, sorted by paper, verdict and order in the paper."""

    rows: Sequence[Row] = ()
    papers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    link: Callable[[Mapping[str, Any]], str | None] = lambda check: None

    def html(self) -> str:
        """The cards; the page's script draws the charts into them."""
        drawn = {chart.name: chart for chart in self.charts}
        parts = []
        for paper, about in self.papers.items():
            own = [row for row in self.rows if row["paper"] == paper]
            if not own:
                continue
            parts.append(f'<h2 class="paper" data-heads="{escape(paper)}">{escape(about["authors"])}</h2>')
            parts.append(f'<p class="about" data-heads="{escape(paper)}">{_source(about)}</p>')
            for verdict in VERDICTS:
                group = [row for row in own if row["verdict"] == verdict]
                if group:
                    key = escape(f"{paper}/{verdict}")
                    parts.append(
                        f'<h3 class="kind" data-heads="{key}" data-verdict="{verdict}">{escape(_plural(verdict))}</h3>'
                    )
                    parts += [_card(row, drawn.get(f"chart-{row['id']}"), self.link) for row in group]
        return "\n".join(parts)


def claims_page(record: Mapping[str, Any], link: Callable[[Mapping[str, Any]], str | None], source: str) -> str:
    """The HTML of the audit; `link` returns the address of a check's code, or None."""
    rows = record["claims"]
    charts: list[Chart] = [claim_chart(row["id"], row["plot"]) for row in rows if row["plot"]]
    title = f"The audit: {len(rows)} statements of two papers, each with a computed verdict"
    body = document(
        title,
        _lead(record),
        [Cards("", charts, rows=rows, papers=record["papers"], link=link)],
        {},
        footer=source,
        styles=[_asset("claims.css")],
        scripts=[_asset("claims.js")],
    )
    return body.replace("<body>", '<body class="verdicts">', 1)


def _lead(record: Mapping[str, Any]) -> str:
    tiles = "".join(_tiles(record["claims"], paper, about) for paper, about in record["papers"].items())
    return (
        "<p>Neither paper comes with code, seeds or error bars. Here every statement of theirs that can be checked "
        "is put to a computation that anyone can run again: <code>uncollapse reproduce claims</code>. No verdict is "
        "written down anywhere; each follows from numbers, and for each a change of the statement or the data is "
        "known that turns it.</p>\n<p>Both papers got much right, and that comes first. A correction names the slip, "
        "gives the right form and says what survives; that last point is a judgement, the verdict is computed. Words "
        "such as uniform or minimal need a number to be tested, and &ldquo;Decided by&rdquo; names it. Entries that "
        "only compare printed numbers, or that a text implies without printing, say so.</p>\n"
        f'<p class="about">{_versions(record["papers"])}</p>\n'
        f'<section class="card overview">{tiles}</section>\n{_filters(record)}'
    )


def _versions(papers: Mapping[str, Mapping[str, str]]) -> str:
    read = "; ".join(f"of {about['authors']} ({about['venue']}), {about['read']}" for about in papers.values())
    return escape(f"What was read: {read}. Later versions may differ.")


def _source(about: Mapping[str, str]) -> str:
    return escape(f"{about['title']}. {about['venue']}. Read: {about['read']}.")


def _tiles(rows: Sequence[Row], paper: str, about: Mapping[str, str]) -> str:
    groups = []
    for verdict in VERDICTS:
        own = [row for row in rows if row["paper"] == paper and row["verdict"] == verdict]
        if own:
            squares = "".join(
                f'<a href="#{escape(row["id"])}" title="{escape(row["id"] + ": " + row["statement"])}" '
                f'aria-label="{escape(row["id"])}"></a>'
                for row in own
            )
            groups.append(
                f'<div class="group" data-verdict="{verdict}"><b>{len(own)}</b><span>{escape(verdict)}</span>'
                f'<div class="tiles">{squares}</div></div>'
            )
    return f'<div><h2>{escape(about["authors"])}</h2><div class="groups">{"".join(groups)}</div></div>'


def _filters(record: Mapping[str, Any]) -> str:
    papers = {paper: about["authors"] for paper, about in record["papers"].items()}
    there = {row["verdict"] for row in record["claims"]}
    verdicts = {verdict: verdict for verdict in VERDICTS if verdict in there}
    return (
        f'<div class="filters">{_menu("paper", "both papers", papers)}{_menu("verdict", "all verdicts", verdicts)}'
        '<input id="filter-words" type="search" placeholder="words or id" aria-label="words or id">'
        '<span class="shown" id="shown"></span></div>'
    )


def _menu(name: str, every: str, options: Mapping[str, str]) -> str:
    items = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in options.items())
    return f'<select id="filter-{name}" aria-label="{name}"><option value="">{escape(every)}</option>{items}</select>'


def _plural(verdict: str) -> str:
    return {
        "holds": "What holds",
        "holds under a condition": "What holds under a condition",
        "fails": "What fails as printed",
        "cannot be checked at this scale": "What cannot be checked at this scale",
        "pending": "Pending: decided by trained networks",
        "error": "Checks that crashed: bugs of uncollapse",
    }[verdict]


def _card(row: Row, chart: Chart | None, link: Callable[[Mapping[str, Any]], str | None]) -> str:
    figure = ""
    if chart:
        caption = f"<figcaption>{escape(chart.caption)}</figcaption>" if chart.caption else ""
        figure = f'<figure><div class="chart" id="{escape(chart.name)}"></div>{caption}</figure>'
    id, verdict = escape(row["id"]), escape(row["verdict"])
    conclusion = {None: "", True: STANDS, False: FALLS}[row["survives"]]
    terms = [
        ("Found", row["evidence"]),
        ("Decided by", row["how"]),
        ("Right form", row["corrected"]),
        ("Conclusion", conclusion),
        ("For a user", row["consequence"]),
    ]
    listed = "".join(f"<dt>{name}</dt><dd>{formula_html(text)}</dd>" for name, text in terms if text)
    return (
        f'<article class="card claim" id="{id}" data-paper="{escape(row["paper"])}" data-verdict="{verdict}" '
        f'data-group="{escape(row["paper"])}/{verdict}">'
        f'<div class="top"><span class="badge">{verdict}</span><span>{escape(row["place"])}</span>'
        f'<a href="#{id}">{id}</a></div>'
        f"<h3>{formula_html(row['statement'])}</h3>"
        f'<div class="both"><dl>{listed}</dl>{figure}</div>{_details(row, link)}</article>'
    )


def _details(row: Row, link: Callable[[Mapping[str, Any]], str | None]) -> str:
    cells = "".join(
        f"<tr><td>{formula_html(name)}</td><td>{escape(_number(value))}</td></tr>"
        for name, value in row["numbers"].items()
    )
    if row["standard_error"] is not None:
        cells += f"<tr><td>standard error</td><td>{escape(_number(row['standard_error']))}</td></tr>"
    check, address = row["check"], link(row["check"])
    text = escape(f"{check['file']}:{check['line']} ({check['function']})")
    code = f'<a href="{escape(address)}"><code>{text}</code></a>' if address else f"<code>{text}</code>"
    changed = row["changed"]
    return (
        f"<details><summary>Numbers, test of the check, code</summary><table>{cells}</table><p>With a change, "
        f"{formula_html(changed['says'])}, the verdict is: {escape(changed['verdict'])}.</p><p>Code: "
        f"{code}</p></details>"
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
