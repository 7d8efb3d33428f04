"""The audit as a Markdown page, from the record that `reproduce claims` writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..audit.roots import KIND_TITLES
from .claims_chart import COLOURS, TITLE
from .claims_page import FALLS, HEADINGS, STANDS, by_root, changes
from .formula import readable
from .quotation import readable_quote


def escaped(text: str) -> str:
    """Plain text escaped for Markdown, except for code between backticks.

    >>> print(escaped("a_b * `c_d` | <e>"))
    a\\_b \\* `c_d` \\| &lt;e>
    """
    parts = re.split(r"(`[^`]+`)", readable(text))
    return "".join(part if part.startswith("`") and part.endswith("`") else _escape(part) for part in parts)


def _escape(text: str) -> str:
    return re.sub(r"([\\*_|\[\]#~])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")


def claims_markdown(record: Mapping[str, Any], root: str = "../") -> str:
    """The page; `root` is the relative path from it to the root of the repository."""
    rows, papers = record["claims"], record["papers"]
    lines = [*_introduction(record), *_roots(record), *_withdrawn(record)]
    for paper, about in papers.items():
        own = [row for row in rows if row["paper"] == paper]
        lines += [f"## {about['authors']}", ""] if own else []
        for outcome in COLOURS:
            group = [row for row in own if row["outcome"] == outcome]
            if group:
                lines += [f"### {about['authors']}: {_lower(HEADINGS[outcome])} ({len(group)})", ""]
                for cause, rooted in by_root(group):
                    if cause:
                        lines += [f"#### {escaped(f'{KIND_TITLES[cause.kind].capitalize()}: {cause.title}')}", ""]
                    for row in rooted:
                        lines += [*_entry(row, root), ""]
    return "\n".join(lines).rstrip() + "\n"


def _introduction(record: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"# {TITLE}", "")
    yield from (f"**{escaped(record['headline'])}**", "")
    yield (
        f"Written by `uncollapse reproduce claims`; do not edit. Each of the {len(record['claims'])} entries has the "
        "paper's own words, a check that computes its verdict from numbers, a change of the statement or the data that "
        "turns the verdict, which a test applies, and what would change our mind. [How to run it and how to add a "
        "claim](audit.md)."
    )
    yield ""
    for about in record["papers"].values():
        yield f"- **{about['authors']}**, *{about['title']}*, {about['venue']}. Read: {about['read']}."
    yield ""
    yield (
        "Both papers got much right, and that comes first. Statements that fail for one reason stand under one root, "
        "and the headline counts roots. What depends on a reading, what is not the paper's own statement and what "
        "small trained networks do not reproduce is shown, and is not counted as a failure of a paper. Whether a "
        "conclusion survives is our judgement; the verdict is computed. Words such as uniform or minimal need a number "
        "to be tested, and *Decided by* names it."
    )
    yield from ("", *count_table(record), "")


def count_table(record: Mapping[str, Any]) -> list[str]:
    """Number of entries by paper and outcome as a Markdown table."""
    rows, papers = record["claims"], record["papers"]
    there = [outcome for outcome in COLOURS if any(row["outcome"] == outcome for row in rows)]
    lines = ["| paper | entries | " + " | ".join(there) + " |", "| --- |" + " --- |" * (len(there) + 1)]
    for paper, about in papers.items():
        own = [row["outcome"] for row in rows if row["paper"] == paper]
        lines.append(f"| {about['authors']} | {len(own)} | " + " | ".join(str(own.count(v)) for v in there) + " |")
    outcomes: Sequence[str] = [row["outcome"] for row in rows]
    return [*lines, f"| both | {len(rows)} | " + " | ".join(str(outcomes.count(v)) for v in there) + " |"]


def root_table(record: Mapping[str, Any]) -> list[str]:
    """Number of roots by paper and kind as a Markdown table."""
    roots, papers = record["roots"], record["papers"]
    there = [kind for kind in KIND_TITLES if any(root["kind"] == kind for root in roots)]
    lines = ["| roots | " + " | ".join(KIND_TITLES[kind] for kind in there) + " |", "| --- |" + " --- |" * len(there)]
    named = {about["authors"]: {paper} for paper, about in papers.items()} | {"both": set(papers)}
    for name, chosen in named.items():
        own = [root["kind"] for root in roots if root["paper"] in chosen]
        lines.append(f"| {name} | " + " | ".join(str(own.count(kind)) for kind in there) + " |")
    return lines


def _roots(record: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## Roots and their statements", "", *root_table(record), "")
    for kind, title in KIND_TITLES.items():
        own = [root for root in record["roots"] if root["kind"] == kind]
        if own:
            yield from (f"### {len(own)} {title}", "")
            for root in own:
                yield f"- {escaped(root['title'])}: {', '.join(map(_escape, root['claims']))}"
            yield ""


def _withdrawn(record: Mapping[str, Any]) -> Iterator[str]:
    if record["withdrawn"]:
        yield from ("## Withdrawn or merged", "")
        for id, why in record["withdrawn"].items():
            yield f"- {_escape(id)}: {escaped(why)}"
        yield ""


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _entry(row: Mapping[str, Any], root: str) -> Iterator[str]:
    yield f"**{row['id']}** ({escaped(row['place'])}): {escaped(row['statement'])}"
    yield ""
    if row["quote"]:
        yield from (f"> {escaped(readable_quote(row['quote']))}", "")
    if row["unverified"]:
        yield f"- Not read in the paper itself: {escaped(row['unverified'])}"
    yield f"- {row['verdict'].capitalize()}. {escaped(row['evidence'])}"
    yield f"- Decided by: {escaped(row['how'])}"
    if row["corrected"]:
        yield f"- Right form: {escaped(row['corrected'])}"
    if row["survives"] is not None:
        yield f"- {STANDS if row['survives'] else FALLS}"
    yield f"- For a user: {escaped(row['consequence'])}"
    yield f"- [Check]({root}{row['check']['file']}): `{row['check']['function']}`. {escaped(changes(row))}"
    if row["changes_our_mind"]:
        yield f"- What would change our mind: {escaped(row['changes_our_mind'])}"
