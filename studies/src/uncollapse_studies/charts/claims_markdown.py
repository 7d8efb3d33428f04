"""The audit as a Markdown page, from the record that `reproduce claims` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .claims_chart import COLOURS
from .claims_page import FALLS, STANDS
from .formula import readable

HEADINGS = {
    "holds": "What holds",
    "holds under a condition": "What holds under a condition",
    "fails": "What fails as printed",
    "cannot be checked at this scale": "What cannot be checked at this scale",
    "pending": "Pending",
    "error": "Checks that crashed",
}


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
    lines = [
        "# The audit: a computed verdict for every statement",
        "",
        f"Written by `uncollapse reproduce claims`; do not edit. It holds {len(rows)} statements of two papers. Each "
        "has a check that computes its verdict from numbers, and a change of the statement or the data that turns "
        "the verdict, which a test applies. [How to run it and how to add a claim](audit.md).",
        "",
        *(
            f"- **{about['authors']}**, *{about['title']}*, {about['venue']}. Read: {about['read']}."
            for about in papers.values()
        ),
        "",
        "Later versions may differ. Both papers got much right, and that comes first. A correction names the slip, "
        "gives the right form and says what survives; that last point is a judgement, the verdict is computed. Words "
        "such as uniform or minimal need a number to be tested, and *Decided by* names it. Entries that only compare "
        "printed numbers, or that a text implies without printing, say so.",
        "",
        *count_table(record),
        "",
    ]
    for paper, about in papers.items():
        own = [row for row in rows if row["paper"] == paper]
        lines += [f"## {about['authors']}", ""] if own else []
        for verdict in COLOURS:
            group = [row for row in own if row["verdict"] == verdict]
            if group:
                lines += [f"### {about['authors']}: {HEADINGS[verdict].lower()} ({len(group)})", ""]
                for row in group:
                    lines += [*_entry(row, root), ""]
    return "\n".join(lines).rstrip() + "\n"


def count_table(record: Mapping[str, Any]) -> list[str]:
    """Number of statements by paper and verdict as a Markdown table."""
    rows, papers = record["claims"], record["papers"]
    there = [verdict for verdict in COLOURS if any(row["verdict"] == verdict for row in rows)]
    lines = ["| paper | statements | " + " | ".join(there) + " |", "| --- |" + " --- |" * (len(there) + 1)]
    for paper, about in papers.items():
        own = [row["verdict"] for row in rows if row["paper"] == paper]
        lines.append(f"| {about['authors']} | {len(own)} | " + " | ".join(str(own.count(v)) for v in there) + " |")
    verdicts: Sequence[str] = [row["verdict"] for row in rows]
    return [*lines, f"| both | {len(rows)} | " + " | ".join(str(verdicts.count(v)) for v in there) + " |"]


def _entry(row: Mapping[str, Any], root: str) -> list[str]:
    check = row["check"]
    lines = [
        f"**{row['id']}** ({escaped(row['place'])}): {escaped(row['statement'])}",
        "",
        f"- {row['verdict'].capitalize()}. {escaped(row['evidence'])}",
    ]
    lines.append(f"- Decided by: {escaped(row['how'])}")
    if row["corrected"]:
        lines.append(f"- Right form: {escaped(row['corrected'])}")
    if row["survives"] is not None:
        lines.append(f"- {STANDS if row['survives'] else FALLS}")
    lines += [
        f"- For a user: {escaped(row['consequence'])}",
        f"- [Check]({root}{check['file']}): `{check['function']}`. With a change, {escaped(row['changed']['says'])}, "
        f"the verdict is: {row['changed']['verdict']}.",
    ]
    return lines
