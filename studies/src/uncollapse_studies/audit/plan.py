"""The plan: which cells decide, which of those on disk were trained as they are defined now, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..artefacts import ARTEFACTS
from ..cells.cell import Budget
from ..cells.cell import Cell as Planned
from ..cells.store import Store

CellRecord = Mapping[str, Any]
PlannedCells = Mapping[tuple[str, str, int], Planned]  # by artefact, label and seed
RequiredSettings = Mapping[str, Mapping[str, float]]  # the methods that are asked, and the settings that each must have
TINY: Budget = "tiny"  # of cells that only try the code
LAPTOP: Budget = "laptop"  # of cells that are planned


@lru_cache
def planned(artefact: str) -> Mapping[tuple[str, int], Planned]:
    """The cells that an artefact plans at first, by label and seed; none of an artefact that is not registered."""
    if artefact not in ARTEFACTS:
        return {}
    return {(cell.label, cell.seed): cell for cell in ARTEFACTS[artefact].all_cells(LAPTOP)}


def plan(artefacts: Sequence[str], folder: Path) -> PlannedCells:
    """The planned cells of some artefacts, with those that finished cells in a folder ask for: seeds at a best rate."""
    found: dict[tuple[str, str, int], Planned] = {}
    for artefact in artefacts:
        cells: Iterable[Planned] = planned(artefact).values()
        if artefact in ARTEFACTS and ARTEFACTS[artefact].following is not None:
            cells = ARTEFACTS[artefact].all_cells(LAPTOP, store=Store(folder))
        found |= {(artefact, cell.label, cell.seed): cell for cell in cells}
    return found


def one_seed_planned(artefact: str) -> bool:
    """Whether an artefact is planned with one seed, so that there will never be more."""
    return artefact in ARTEFACTS and ARTEFACTS[artefact].seeds == 1


def budget(cell: CellRecord) -> str | None:
    """The budget of a cell; made-up cells have none."""
    found: str | None = cell.get("settings", {}).get("budget")
    return found


def outdated(cell: CellRecord, plan: PlannedCells) -> bool:
    """Whether a cell is a planned one that was trained by another definition than today's."""
    now = plan.get((str(cell.get("artefact")), str(cell.get("label")), cell.get("seed", -1)))
    if now is None or budget(cell) != LAPTOP or "definition" not in cell:
        return False
    return bool(cell["definition"] != now.definition)


def asked_for(method: str, settings: Mapping[str, Any], asked: RequiredSettings) -> bool:
    """Whether a cell of a method with these settings is among those asked for.

    >>> asked_for("locater", {"kappa_mean": 0.1}, {"locater": {"kappa_mean": 1.0}})
    False
    """
    return method in asked and all(settings.get(name) == value for name, value in asked[method].items())


def missing(plan: PlannedCells, asked: RequiredSettings, there: Iterable[CellRecord]) -> tuple[int, int]:
    """How many cells are planned of what is asked, and how many of them are not there.

    Cells of another budget, and made-up ones without any, are complete by themselves.
    """
    wanted = {key for key, cell in plan.items() if asked_for(cell.method, cell.own, asked)}
    there = list(there)
    known = {(cell["artefact"], cell.get("label"), cell["seed"]) for cell in there if budget(cell) == LAPTOP}
    return len(wanted), 0 if there and not known else len(wanted - known)
