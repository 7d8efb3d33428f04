"""README's table of what helps, written between two marks by `reproduce results`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from uncollapse.remedies.contents import ENTRIES, UNTESTED

from .remedies.study import SENSITIVITY
from .results_page import markdown
from .what_helps import evidence_lines

README = Path("README.md")
BEGIN, END = "<!-- table of `uncollapse reproduce results` -->", "<!-- end of the table -->"


def readme_text(root: Path) -> str | None:
    """README with the table as the studies have it; None where there is no README with the two marks."""
    file = root / README
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return None
    return f"{before}{begin}\n\n{remedies_table(root)}\n{end}{after}"


def remedies_table(root: Path) -> str:
    """The remedies that a diagnosis names, one short line each; where and how they were tested is on their page."""
    found = evidence_lines(root)
    rows = [
        (f"`{entry.name}`", entry.against, found.get(entry.name, UNTESTED).partition(";")[0].removeprefix(SENSITIVITY))
        for entry in ENTRIES
        if entry.verdicts
    ]
    return markdown(pd.DataFrame(rows, columns=["remedy", "against", f"{SENSITIVITY}in our studies"]))
