"""Cells: results of trained networks, one JSON file each, under `results/cells/`.

A cell is {"artefact": "hopfield-main-gpt2", "method": "self-attention", "label": "self-attention", "seed": 0,
"settings": {"layers": 6}, "numbers": {"perplexity": 22.9}, "status": "finished"}, with "curves" over the updates and
the "definition" of the training beside them; further keys are ignored. Cells with the same artefact, settings and
method differ by their seed alone. A comparison is made within one artefact and one set of settings, apart from the
method's own numbers (alpha, alpha_hidden, kappa_scale, kappa_mean).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ..cells.cell import OWN
from .plan import TINY, CellRecord, PlannedCells, RequiredSettings, asked_for, budget, missing, outdated, plan

Number = str | Callable[[CellRecord], float | None]  # the name of a number of a cell, or computed from the cell
FINISHED = "finished"


@dataclass(frozen=True)
class CellSelection:
    """The cells of some artefacts and methods: those that are trained, and how many of those planned are not."""

    artefacts: Sequence[str]
    finished: Sequence[CellRecord]
    diverged: Sequence[CellRecord]
    planned: int
    missing: int  # of those planned

    @property
    def count(self) -> int:
        """How many cells are trained, diverged ones included."""
        return len(self.finished) + len(self.diverged)


def gather(folder: Path, artefacts: Sequence[str], asked: RequiredSettings) -> CellSelection:
    """Read the cells of some methods and compare them with the plan.

    >>> gather(Path("no/such/folder"), ["hopfield-main-gpt2"], {"hopfield": {}, "self-attention": {}}).missing
    6
    """
    planned = plan(artefacts, folder)
    every = cells(artefacts, folder, planned)
    there = [cell for cell in every if asked_for(str(cell.get("method")), cell.get("settings", {}), asked)]
    return CellSelection(
        artefacts,
        [cell for cell in there if is_finished(cell)],
        [cell for cell in there if not is_finished(cell)],
        *missing(planned, asked, there),
    )


def finished(artefacts: Sequence[str], folder: Path) -> list[CellRecord]:
    """The cells of some artefacts, of all methods, that were trained to the end."""
    return [cell for cell in cells(artefacts, folder) if is_finished(cell)]


def is_finished(cell: CellRecord) -> bool:
    """Whether a network was trained to the end; one that diverged has no final number."""
    return bool(cell.get("status", FINISHED) == FINISHED)


def cells(artefacts: Sequence[str], folder: Path, planned: PlannedCells | None = None) -> list[CellRecord]:
    """The cells of some artefacts, sorted by file name.

    Those that only try the code are left out, and those that were trained by an earlier definition.

    >>> cells(["hopfield-main-gpt2"], Path("no/such/folder"))
    []
    """
    every = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.json"))]
    every = [cell for cell in every if cell.get("artefact") in artefacts and budget(cell) != TINY]
    planned = plan(artefacts, folder) if planned is None else planned
    return [cell for cell in every if not outdated(cell, planned)]


def read(cell: CellRecord, number: Number) -> float | None:
    """A number of a cell, by its name or computed from the cell; None if the cell does not have it."""
    if callable(number):
        return number(cell)
    value = cell.get("numbers", {}).get(number)
    return None if value is None else float(value)


def named(number: Number) -> str:
    """What a number is called in a sentence."""
    if not callable(number):
        return number
    words = (number.__doc__ or "").rstrip(".")
    return words[:1].lower() + words[1:]


@dataclass(frozen=True)
class CellSetting:
    """Artefact and settings that cells must have in common to be compared, and the method's own."""

    artefact: str
    shared: tuple[str, ...]
    own: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join((self.artefact, *self.shared, *self.own))

    @property
    def base(self) -> CellSetting:
        """The same without the method's own settings."""
        return CellSetting(self.artefact, self.shared)


def setting(cell: CellRecord) -> CellSetting:
    """The setting of a cell."""
    pairs = sorted(cell.get("settings", {}).items())
    shared, own = (tuple(f"{name} {value}" for name, value in pairs if (name in OWN) is mine) for mine in (False, True))
    return CellSetting(str(cell["artefact"]), shared, own)


def values(found: Sequence[CellRecord], method: str, number: Number) -> dict[CellSetting, list[float]]:
    """The number of a method by setting, as a list over the seeds."""
    grouped: dict[CellSetting, list[float]] = {}
    for cell in found:
        value = read(cell, number)
        if cell.get("method") == method and value is not None:
            grouped.setdefault(setting(cell), []).append(value)
    return grouped


def made_up(
    artefact: str, number: str, levels: Mapping[str, float], settings: Sequence[Mapping[str, Any]] = ({},)
) -> list[CellRecord]:
    """Cells of three seeds around a level for each method, the same throughout training, for mutations and tests."""
    found: list[CellRecord] = []
    for setting, (method, level), seed in product(settings, levels.items(), range(3)):
        value = level * (1.0 + 0.001 * seed)
        found.append(
            {
                "artefact": artefact,
                "method": method,
                "seed": seed,
                "settings": dict(setting),
                "numbers": {number: value},
                "curves": {"step": [0, 1], number: [value, value]},
            }
        )
    return found
