"""README's tables, each written between two marks by `reproduce results`: what helps, and inherited scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from uncollapse.remedies.contents import ENTRIES, UNTESTED

from .artefact import ArtefactCells
from .artefacts import ARTEFACTS
from .cells.cell import Budget
from .cells.readings import COMPARISONS, ID, LONGEST, PLAIN, READINGS
from .cells.store import Store
from .hopfield.trained_readings import OURS, levels_and_gaps
from .remedies.plan import PLAIN as NO_REMEDY
from .remedies.study import sensitivities
from .results_page import markdown
from .trained import better

README = Path("README.md")
NOT_FINISHED = "not finished"
LAPTOP: Budget = "laptop"
NETWORKS = {"gpt2": "GPT", "vit": "ViT"}


def marks(name: str) -> tuple[str, str]:
    """The lines between which a table stands.

    >>> marks("table")
    ('<!-- table of `uncollapse reproduce results` -->', '<!-- end of the table -->')
    """
    return f"<!-- {name} of `uncollapse reproduce results` -->", f"<!-- end of the {name} -->"


def readme_text(root: Path) -> str | None:
    """README with the tables as the studies have them; None where there is no README with marks."""
    file = root / README
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = False
    for name, table in TABLES.items():
        begin, end = marks(name)
        before, is_there, rest = text.partition(begin)
        _, ends, after = rest.partition(end)
        if is_there and ends:
            text, found = f"{before}{begin}\n\n{table(root)}\n{end}{after}", True
    return text if found else None


def remedies_table(root: Path) -> str:
    """The remedies that a diagnosis names, with their sensitivity to the learning rate; the rest is on their page."""
    found = sensitivities(root / "studies/results")
    named = {NO_REMEDY: "", **{entry.name: entry.against for entry in ENTRIES if entry.verdicts}}
    rows = [
        (f"`{name}`" if name != NO_REMEDY else "none", against, *(own.get(name, UNTESTED) for own in found.values()))
        for name, against in named.items()
    ]
    return markdown(pd.DataFrame(rows, columns=["remedy", "against", *(f"sensitivity, {text}" for text in found)]))


def readings_table(root: Path) -> str:
    """Plain attention, and what each reading of the visible skip changes, every method at its own learning rate."""
    columns = {"`skip`": ["plain attention", *(f"`{skip}`" for skip in READINGS)]}
    store = Store(root / "studies/results/cells")
    for model, network in NETWORKS.items():
        artefact, number = ARTEFACTS[f"{ID}{LONGEST[model]}"], COMPARISONS[model].number
        cells = ArtefactCells(artefact, artefact.all_cells(LAPTOP, store=store), store)
        levels, gaps = levels_and_gaps(cells, number)
        told = [f"{levels[PLAIN].mean:.1f}" if PLAIN in levels else NOT_FINISHED]
        for skip in READINGS:
            gap = gaps.get(f"{OURS}-{skip}")
            told.append(NOT_FINISHED if gap is None else f"{_short(gap.value)} ({better(number, gap)})")
        columns[f"{network}: {number}"] = told
    return markdown(pd.DataFrame(columns))


def _short(value: float) -> str:
    """One digit after the point, and no sign before a zero.

    >>> _short(-0.604), _short(0.004)
    ('-0.6', '0.0')
    """
    return f"{value:+.1f}" if abs(round(value, 1)) > 0 else "0.0"


TABLES: dict[str, Callable[[Path], str]] = {"table": remedies_table, "comparison": readings_table}
