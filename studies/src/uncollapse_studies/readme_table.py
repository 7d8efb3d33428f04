"""README's table of what helps, written between two marks by `reproduce results`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from uncollapse.remedies.contents import ENTRIES, UNTESTED

from .remedies.plan import PLAIN
from .remedies.study import sensitivities
from .results_page import markdown

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
    """The remedies that a diagnosis names, with their sensitivity to the learning rate; the rest is on their page."""
    found = sensitivities(root / "studies/results")
    named = {PLAIN: "", **{entry.name: entry.against for entry in ENTRIES if entry.verdicts}}
    rows = [
        (f"`{name}`" if name != PLAIN else "none", against, *(own.get(name, UNTESTED) for own in found.values()))
        for name, against in named.items()
    ]
    return markdown(pd.DataFrame(rows, columns=["remedy", "against", *(f"sensitivity, {text}" for text in found)]))
