"""`uncollapse reproduce list`: id, paper, time, status and title of everything that can be reproduced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from uncollapse.cli.command import Command, option
from uncollapse.cli.text_table import text_table

from .. import locations

PAPERS = {"hopfield": "Masumura and Taki", "localization": "Bao et al."}
GPU = {"hopfield": "days on a GPU", "localization": "hours on a GPU"}  # at the paper's budget; not run here


@dataclass(frozen=True)
class ListOptions:
    """Options of `uncollapse reproduce list`."""

    cells: Path | None = option(None, "folder with the results of trained networks (default: the committed ones)")
    budget: Literal["laptop", "paper"] = option("laptop", "of trained networks: minutes each, or the paper's setting")


def run(settings: ListOptions) -> int:
    """Print one line for each table or figure; times are those of what is missing, on two quiet cores."""
    from ..artefacts import ARTEFACTS
    from ..cells.store import Store
    from ..figure import FIGURES
    from ..study import STUDIES

    cells, budget = settings.cells or locations.cells(), settings.budget
    store = Store(cells)
    known = store.definitions()
    rows = [("id", "paper", "time", "status", "title")]
    for figure in FIGURES.values():
        kept = (cells.parent / figure.id / f"{figure.id}.json").is_file()
        rows.append((figure.id, _paper(figure.id), figure.time, "in results" if kept else "not kept", figure.title))
    for artefact in ARTEFACTS.values():
        wanted = artefact.all_cells(budget, store=store)
        there = [cell for cell in wanted if store.current(cell) is not None]
        to_train = {cell.definition for cell in wanted} - known  # other artefacts may have trained the same networks
        left = f"{len(to_train) * artefact.minutes:.0f} min" if to_train else "done"
        time = left if budget == "laptop" else GPU[artefact.paper]
        status = f"{len(there)} of {len(wanted)} cells"
        rows.append((artefact.id, _paper(artefact.id), time, status, artefact.title))
    for study in STUDIES.values():
        kept = study.is_kept(cells.parent)
        rows.append((study.id, "our own", study.time, "in results" if kept else "not kept", study.title))
    rows.append(("claims", "both", "3 min", "", "every statement of the two papers with a computed verdict"))
    rows.append(("calibration", "", "minutes", "", "thresholds of a diagnosis, false and missed alarms"))
    rows.append(("models", "", "seconds", "", "diagnoses of small models that others trained"))
    rows.append(("pictures", "", "minutes", "", "pictures of the report page and the demo in docs/images"))
    rows.append(("results", "both", "seconds", "", "docs/results.md and README's table, from the committed results"))
    print(text_table(rows))
    return 0


def _paper(id: str) -> str:
    return PAPERS[id.split("-")[0]]


COMMAND = Command(
    name="reproduce list",
    summary="List everything that can be reproduced, with its paper, the time it takes, and its status.",
    example="uncollapse reproduce list",
    options=ListOptions,
    run=run,
)
