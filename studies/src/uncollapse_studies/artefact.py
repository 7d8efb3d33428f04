"""Artefacts: tables and figures that need trained networks, their cells, and the records of finished cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from uncollapse.statistics import summarise

from .cells.cell import Budget, Cell
from .cells.store import Record, Store

if TYPE_CHECKING:
    import pandas as pd

    from .figure import Result

REPRODUCED, TREND, NOT_SEEN, UNDECIDED, OUT_OF_REACH = (
    "reproduced",
    "same trend",
    "not seen",
    "undecided",
    "cannot be tested at this scale",
)
NO_CLAIM, PENDING = "not in the paper", "pending"
ENDS = {  # of training; see cells/measured.py
    "falling": "still falling",
    "flat": "flat",
    "rising": "rising",
    "unknown": "evaluated too seldom to tell",
}


@dataclass(frozen=True)
class Artefact:
    """An entry of the registry; the module is imported when the artefact is drawn."""

    id: str
    title: str
    paper: str
    module: str  # MODULE.py, with a function result(ArtefactCells) -> Result
    cells: Callable[[Budget, int], list[Cell]]  # budget, seeds -> cells of one seed after the other
    seeds: int = 1
    stands_for: str = ""  # the tables and figures of the paper that it stands for
    minutes: float = 4.0  # of a cell at laptop budget, on two quiet cores
    function: str = "result"
    following: Callable[[Budget, int, Store], list[Cell]] | None = None  # cells that depend on finished ones

    def all_cells(self, budget: Budget, seeds: int | None = None, store: Store | None = None) -> list[Cell]:
        """Every cell, seed 0 of all methods first; with a store also those that its finished cells ask for."""
        seeds = self.seeds if seeds is None else seeds
        following = [] if self.following is None or store is None else self.following(budget, seeds, store)
        return [*self.cells(budget, seeds), *following]

    def result(self, found_cells: ArtefactCells) -> Result:
        """Table, chart and sentences from the finished cells."""
        make: Callable[[ArtefactCells], Result] = getattr(import_module(f".{self.module}", __package__), self.function)
        return make(found_cells)


@dataclass(frozen=True)
class ArtefactCells:
    """The cells of an artefact and what the store has of them."""

    artefact: Artefact
    cells: Sequence[Cell]
    store: Store

    @cached_property
    def records(self) -> list[tuple[Cell, Record]]:
        """The trained cells, as they are defined now."""
        found = [(cell, self.store.current(cell)) for cell in self.cells]
        return [(cell, record) for cell, record in found if record is not None]

    @property
    def finished(self) -> list[tuple[Cell, Record]]:
        """Those that were trained to the end; a run that diverged has no final numbers, curves or tables to show."""
        return [(cell, record) for cell, record in self.records if record["status"] == "finished"]

    @property
    def labels(self) -> list[str]:
        """The labels of the trained cells, in the order of definition."""
        return list(dict.fromkeys(cell.label for cell, _ in self.records))

    @property
    def complete(self) -> bool:
        """Whether every cell is trained; a run that diverged counts."""
        return len(self.records) == len(self.cells)

    def lacking(self) -> str:
        """The verdict where a number that decides is missing: still to come, or lost in a run that diverged."""
        return OUT_OF_REACH if self.complete else PENDING

    def progress(self) -> str:
        """How many cells are trained."""
        return f"{len(self.records)} of {len(self.cells)} cells are trained."

    def training(self) -> list[str]:
        """How far training went, as sentences."""
        records = [record for _, record in self.finished]
        sentences = []
        if records:
            epochs = sorted({record["epochs"] for record in records})
            span = f"{epochs[0]:g}" if len(epochs) == 1 else f"{epochs[0]:g} to {epochs[-1]:g}"
            ends = Counter(record["held_out_loss"] for record in records)
            told = ", ".join(f"{ENDS[end]} in {ends[end]}" for end in ENDS if ends[end])
            sentences.append(
                f"Trained for {span} epochs{self._examples()}. The held-out loss at the end: {told} of {len(records)} "
                "cells."
            )
        diverged = [f"{cell.label} (seed {cell.seed})" for cell, r in self.records if r["status"] != "finished"]
        if diverged:
            sentences.append(f"Diverged, and so left out: {', '.join(diverged)}.")
        return sentences

    def _examples(self) -> str:
        """How many examples an epoch has, from the length of training."""
        cell, record = self.finished[0]
        updates, batch = cell.settings.get("steps"), cell.settings["batch_size"]
        if not updates or not record["epochs"]:
            return ""
        examples = float(f"{updates * batch / record['epochs']:.2g}")
        return f" of about {examples:,.0f} examples"

    def numbers(self, number: str) -> dict[str, list[float]]:
        """A number by label, as a list over the seeds; runs that diverged have none."""
        found: dict[str, list[float]] = {}
        for cell, record in self.finished:
            if number in record["numbers"]:
                found.setdefault(cell.label, []).append(record["numbers"][number])
        return found

    def long_table(self) -> pd.DataFrame:
        """All numbers: one row per label and number, with mean, spread (standard deviation) and seeds."""
        import pandas as pd

        rows = []
        settings = {cell.label: cell.settings for cell, _ in self.finished}
        methods = {cell.label: cell.method for cell, _ in self.finished}
        names = list(dict.fromkeys(name for _, record in self.finished for name in record["numbers"]))
        for number in names:
            for label, values in self.numbers(number).items():
                row = {"label": label, "method": methods[label], "number": number}
                rows.append(row | settings[label] | asdict(summarise(values)))
        return pd.DataFrame(rows, columns=None if rows else ["label", "method", "number", "mean", "spread", "seeds"])

    def curves(self, x: str, names: Sequence[str]) -> pd.DataFrame:
        """Curves over training: label, seed, quantity, step, value."""
        import pandas as pd

        rows: list[tuple[Any, ...]] = []
        for cell, record in self.finished:
            curves: Mapping[str, list[float | None]] = record["curves"]
            for name in names:
                for step, value in zip(curves.get(x, []), curves.get(name, []), strict=False):
                    if value is not None:
                        rows.append((cell.label, cell.seed, name, step, value))
        return pd.DataFrame(rows, columns=["label", "seed", "quantity", "step", "value"])
