"""The page of the audit: an overview, filters and one card per claim, from the record of `reproduce claims`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from uncollapse.report.chart import Chart
from uncollapse.report.page import Section, document

from ..audit.claim import FAILS, NOT_REPRODUCED
from ..audit.headline import Row
from ..audit.roots import KIND_TITLES, KINDS, ROOTS, Root
from .claims_chart import COLOURS, TITLE, claim_chart
from .formula import formula_html
from .quotation import readable_quote

OUTCOMES = tuple(COLOURS)
STANDS = "What the paper concludes from it stands in the right form."
FALLS = "What the paper concludes from it does not stand."


@dataclass(frozen=True)
class Cards(Section):
    """One card per claim, sorted by paper, outcome and root."""

    rows: Sequence[Row] = ()
    papers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    link: Callable[[Mapping[str, Any]], str | None] = lambda check: None

    def html(self) -> str:
        """The cards; the page's script draws the charts into them."""
        parts = []
        for paper, about in self.papers.items():
            own = [row for row in self.rows if row["paper"] == paper]
            if not own:
                continue
            parts.append(f'<h2 class="paper" data-heads="{escape(paper)}/">{escape(about["authors"])}</h2>')
            parts.append(f'<p class="about" data-heads="{escape(paper)}/">{_source(about)}</p>')
            for outcome in OUTCOMES:
                group = [row for row in own if row["outcome"] == outcome]
                if group:
                    parts += self._group(f"{paper}/{outcome}", outcome, group)
        return "\n".join(parts)

    def _group(self, key: str, outcome: str, rows: Sequence[Row]) -> Iterator[str]:
        """The cards of an outcome, those with a root under its title."""
        drawn = {chart.name: chart for chart in self.charts}
        yield (
            f'<h3 class="kind" data-heads="{escape(key)}/" data-verdict="{escape(outcome)}">'
            f"{escape(HEADINGS[outcome])}</h3>"
        )
        for root, group in by_root(rows):
            if root:
                title = f"{KIND_TITLES[root.kind].capitalize()}: {root.title}"
                yield f'<h4 class="root" data-heads="{escape(f"{key}/{root.id}/")}">{formula_html(title)}</h4>'
            for row in group:
                yield _card(row, drawn.get(f"chart-{row['id']}"), self.link)


def by_root(rows: Sequence[Row]) -> list[tuple[Root | None, list[Row]]]:
    """Rows by their root, in the order of the kinds; those that hold or are open have none here."""
    rooted = [row for row in rows if row["root"] and row["verdict"] in (FAILS, NOT_REPRODUCED)]
    found = [(root, [row for row in rooted if row["root"] == root.id]) for root in ROOTS.values()]
    found.sort(key=lambda pair: KINDS.index(pair[0].kind))
    others = [row for row in rows if row not in rooted]
    return [*((root, group) for root, group in found if group), *([(None, others)] if others else [])]


HEADINGS = {
    "holds": "What holds",
    "holds under a condition": "What holds under a condition",
    "fails": "What fails as printed",
    "depends on a reading": "What depends on a reading",
    "not the paper's own statement": "What is not the paper's own statement",
    "not reproduced at small scale": "What small trained networks do not reproduce",
    "cannot be checked at this scale": "What cannot be checked at this scale",
    "pending": "Pending: decided by trained networks",
    "error": "Checks that crashed: bugs of uncollapse",
}


def claims_page(record: Mapping[str, Any], link: Callable[[Mapping[str, Any]], str | None], source: str) -> str:
    """The HTML of the audit; `link` returns the address of a check's code, or None."""
    rows = record["claims"]
    charts: list[Chart] = [claim_chart(row["id"], row["plot"]) for row in rows if row["plot"]]
    title = f"{TITLE}: {len(rows)} entries, each with a computed verdict"
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
        f'<p class="headline">{escape(record["headline"])}</p>\n'
        "<p>Neither paper comes with code, seeds or error bars. Here every statement of theirs that can be checked is "
        "put to a computation that anyone can run again: <code>uncollapse reproduce claims</code>. No verdict is "
        "written down anywhere; each follows from numbers. A card has the paper&rsquo;s own words, what was computed, "
        "a change that turns the verdict, and what would change our mind.</p>\n<p>Statements that fail for one reason "
        "stand under one root, and the headline counts roots. What depends on a reading, what is not the "
        "paper&rsquo;s own statement and what small trained networks do not reproduce is shown, and is not counted as "
        "a failure of a paper. Whether a conclusion survives is our judgement; words such as uniform or minimal need a "
        "number to be tested, and &ldquo;Decided by&rdquo; names it.</p>\n"
        f'<p class="about">{_versions(record["papers"])}</p>\n'
        f'<section class="card overview">{tiles}</section>\n{_roots(record)}\n{_withdrawn(record)}\n{_filters(record)}'
    )


def _roots(record: Mapping[str, Any]) -> str:
    """The roots by kind, with links to their claims."""
    parts = []
    for kind, title in KIND_TITLES.items():
        own = [root for root in record["roots"] if root["kind"] == kind]
        items = "".join(f"<li>{formula_html(root['title'])}: {_links(root['claims'])}</li>" for root in own)
        if own:
            parts.append(f"<h3>{len(own)} {escape(title)}</h3><ul>{items}</ul>")
    return f'<details class="card roots" open><summary>Roots and their statements</summary>{"".join(parts)}</details>'


def _links(ids: Sequence[str]) -> str:
    return ", ".join(f'<a href="#{escape(id)}">{escape(id)}</a>' for id in ids)


def _withdrawn(record: Mapping[str, Any]) -> str:
    items = "".join(f"<li><b>{escape(id)}</b>: {formula_html(why)}</li>" for id, why in record["withdrawn"].items())
    return f'<details class="card roots"><summary>Withdrawn or merged</summary><ul>{items}</ul></details>'


def _versions(papers: Mapping[str, Mapping[str, str]]) -> str:
    read = "; ".join(f"of {about['authors']} ({about['venue']}), {about['read']}" for about in papers.values())
    return escape(f"What was read: {read}. Later versions may differ.")


def _source(about: Mapping[str, str]) -> str:
    return escape(f"{about['title']}. {about['venue']}. Read: {about['read']}.")


def _tiles(rows: Sequence[Row], paper: str, about: Mapping[str, str]) -> str:
    groups = []
    for outcome in OUTCOMES:
        own = [row for row in rows if row["paper"] == paper and row["outcome"] == outcome]
        if own:
            squares = "".join(
                f'<a href="#{escape(row["id"])}" title="{escape(row["id"] + ": " + row["statement"])}" '
                f'aria-label="{escape(row["id"])}"></a>'
                for row in own
            )
            groups.append(
                f'<div class="group" data-verdict="{escape(outcome)}"><b>{len(own)}</b><span>{escape(outcome)}</span>'
                f'<div class="tiles">{squares}</div></div>'
            )
    return f'<div><h2>{escape(about["authors"])}</h2><div class="groups">{"".join(groups)}</div></div>'


def _filters(record: Mapping[str, Any]) -> str:
    papers = {paper: about["authors"] for paper, about in record["papers"].items()}
    there = {row["outcome"] for row in record["claims"]}
    outcomes = {outcome: outcome for outcome in OUTCOMES if outcome in there}
    return (
        f'<div class="filters">{_menu("paper", "both papers", papers)}{_menu("verdict", "all verdicts", outcomes)}'
        '<input id="filter-words" type="search" placeholder="words or id" aria-label="words or id">'
        '<span class="shown" id="shown"></span></div>'
    )


def _menu(name: str, every: str, options: Mapping[str, str]) -> str:
    items = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in options.items())
    return f'<select id="filter-{name}" aria-label="{name}"><option value="">{escape(every)}</option>{items}</select>'


def _card(row: Row, chart: Chart | None, link: Callable[[Mapping[str, Any]], str | None]) -> str:
    figure = ""
    if chart:
        caption = f"<figcaption>{escape(chart.caption)}</figcaption>" if chart.caption else ""
        figure = f'<figure><div class="chart" id="{escape(chart.name)}"></div>{caption}</figure>'
    id, outcome = escape(row["id"]), escape(row["outcome"])
    badge = outcome if row["outcome"] == row["verdict"] else f"{outcome} (computed: {escape(row['verdict'])})"
    conclusion = {None: "", True: STANDS, False: FALLS}[row["survives"]]
    terms = [
        ("Found", row["evidence"]),
        ("Decided by", row["how"]),
        ("Right form", row["corrected"]),
        ("Conclusion", conclusion),
        ("For a user", row["consequence"]),
        ("A change that turns it", changes(row)),
        ("What would change our mind", row["changes_our_mind"]),
    ]
    listed = "".join(f"<dt>{name}</dt><dd>{formula_html(text)}</dd>" for name, text in terms if text)
    group = f"{row['paper']}/{row['outcome']}/{row['root']}/"  # begins with what its headings head
    return (
        f'<article class="card claim" id="{id}" data-paper="{escape(row["paper"])}" data-verdict="{outcome}" '
        f'data-group="{escape(group)}">'
        f'<div class="top"><span class="badge">{badge}</span><span>{escape(row["place"])}</span>'
        f'<a href="#{id}">{id}</a></div>'
        f"<h3>{formula_html(row['statement'])}</h3>{_quotation(row)}"
        f'<div class="both"><dl>{listed}</dl>{figure}</div>{_details(row, link)}</article>'
    )


def changes(row: Row) -> str:
    """The mutation of a claim and its perturbation, or why there is none."""
    says = row["changed"]["says"]
    own = says.startswith(("with ", "without ", "if "))
    turned = f"{says[:1].upper()}{says[1:]}" if own else f"With {says}"
    turned += f" the verdict is: {row['changed']['verdict']}."
    perturbed = row["perturbed"]
    if isinstance(perturbed, str):
        return f"{turned} No change by 20 %: {perturbed[:1].lower()}{perturbed[1:]}" if perturbed else turned
    return f"{turned} The right form times {' or '.join(f'{factor:g}' for factor in perturbed)} no longer holds."


def _quotation(row: Row) -> str:
    if not row["quote"]:
        return f'<p class="unverified">Not read in the paper itself. {escape(row["unverified"])}</p>'
    unverified = f" {escape(row['unverified'])}" if row["unverified"] else ""
    words = formula_html(readable_quote(row["quote"]))
    return f"<blockquote>&ldquo;{words}&rdquo; <cite>{escape(row['place'])}.{unverified}</cite></blockquote>"


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
    return f"<details><summary>Numbers and code</summary><table>{cells}</table><p>Code: {code}</p></details>"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
