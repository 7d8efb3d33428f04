"""`uncollapse reproduce --list`: id, paper, time, status and title of everything that can be reproduced."""

from __future__ import annotations

from pathlib import Path

from ..artefacts import ARTEFACTS
from ..cells.cell import Budget
from ..cells.store import Store
from ..figure import FIGURES

PAPERS = {"hopfield": "Masumura and Taki", "localization": "Bao et al."}
GPU = {"hopfield": "days on a GPU", "localization": "hours on a GPU"}  # at the paper's budget; not run here


def listing(cells: Path, budget: Budget) -> str:
    """A line each; times are for two quiet cores, of what is missing."""
    store = Store(cells)
    known = store.definitions()
    rows = [("id", "paper", "time", "status", "title")]
    for figure in FIGURES.values():
        kept = (cells.parent / figure.id / f"{figure.id}.json").is_file()
        rows.append((figure.id, _paper(figure.id), figure.time, "in results" if kept else "not kept", figure.title))
    for artefact in ARTEFACTS.values():
        wanted = artefact.all_cells(budget)
        there = [cell for cell in wanted if store.current(cell) is not None]
        to_train = {cell.definition for cell in wanted} - known  # other artefacts may have trained the same networks
        time = f"{len(to_train) * artefact.minutes:.0f} min" if budget == "laptop" else GPU[artefact.paper]
        status = f"{len(there)} of {len(wanted)} cells"
        rows.append((artefact.id, _paper(artefact.id), time, status, artefact.title))
    rows.append(("claims", "both", "3 min", "", "every statement of the two papers with a computed verdict"))
    rows.append(("results", "both", "seconds", "", "docs/results.md and README's table, written from results/"))
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(4)]
    return "\n".join("".join(f"{text:<{w}}" for text, w in zip(row, widths, strict=False)) + row[4] for row in rows)


def _paper(id: str) -> str:
    return PAPERS[id.split("-")[0]]
