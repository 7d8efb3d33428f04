"""`uncollapse reproduce cells ID`: train the networks that are missing, then draw the table or figure from them all."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from uncollapse.cli.command import Command, UserError, option
from uncollapse.cli.output import output_folder

from .. import locations
from .output_files import DrawingOptions, write_result
from .reproduce import check_command

if TYPE_CHECKING:
    from ..cells.cell import Budget, Cell
    from ..cells.running import CellWorkspace


@dataclass(frozen=True, kw_only=True)
class CellsOptions(DrawingOptions):
    """Options of `uncollapse reproduce cells`; a cell is one trained network: a method and a seed."""

    id: str = option(
        help="the table or figure, for example localization-fig6; reproduce list shows all", positional=True
    )
    force: bool = option(False, "train every cell again, and replace the files of an earlier run")
    only: str | None = option(None, "train only the cells of this method")
    cells: Path | None = option(None, "folder for the results of trained networks (default: the committed ones)")
    budget: Literal["laptop", "paper"] = option("laptop", "minutes for each cell, or the paper's own setting")
    seeds: int | None = option(None, "train seeds 0, 1, ... of each method (default: as listed)")
    at_most: int | None = option(None, "train at most this many of the missing cells; 0: only draw")
    jobs: int = option(1, "number of cells to train at the same time")
    work: Path | None = option(None, "folder for runs in training (default: $UNCOLLAPSE_CACHE/cells)")


def run(settings: CellsOptions) -> int:
    """Train what is missing and draw what is there; a signal stops it after a checkpoint."""
    from ..artefact import ArtefactCells
    from ..artefacts import ARTEFACTS
    from ..cells.running import StoppedError, run_cells

    check_command(settings.id, "cells")
    _check_numbers(settings)
    artefact, started = ARTEFACTS[settings.id], time.perf_counter()
    budget: Budget = "tiny" if settings.quick else settings.budget
    out = settings.out or Path(artefact.id)
    with ExitStack() as stack:
        workspace = _workspace(settings, stack)
        cells = artefact.all_cells(budget, settings.seeds, workspace.store)
        chosen = _chosen(cells, settings, workspace)
        _check_writable(chosen, settings)
        folder = stack.enter_context(output_folder(out, settings.force or (out / f"{artefact.id}.json").is_file()))
        try:
            left, force = settings.at_most, settings.force
            while chosen:
                run_cells(chosen, workspace, jobs=settings.jobs, force=force, say=_say)
                left, force = None if left is None else left - len(chosen), False
                cells = artefact.all_cells(budget, settings.seeds, workspace.store)
                chosen = _chosen(cells, replace(settings, at_most=left, force=False), workspace)
        except StoppedError as stopped:
            print(f"uncollapse reproduce cells: {stopped}", file=sys.stderr)
            return 128 + (signal.SIGTERM if "SIGTERM" in str(stopped) else signal.SIGINT)
        found_cells = ArtefactCells(artefact, cells, workspace.store)
        if not found_cells.records:
            raise UserError(f"no cell of {artefact.id} is trained yet; run it without --at-most 0.")
        result = artefact.result(found_cells)
        written = write_result(folder, artefact.id, artefact.title, result, time.perf_counter() - started, settings)
    print("\n".join(result.sentences))
    print(f"\n{out}: {', '.join(written)}")
    return 0


def _workspace(settings: CellsOptions, stack: ExitStack) -> CellWorkspace:
    """Where cells are stored and trained; a trial leaves nothing among the results."""
    from ..cells.running import CellWorkspace, work_folder
    from ..cells.store import Store

    if settings.quick:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return CellWorkspace(Store(store), settings.work or store / "runs", progress=sys.stderr.isatty())
    store = settings.cells or locations.cells()
    return CellWorkspace(Store(store), settings.work or work_folder(), progress=sys.stderr.isatty())


def _check_numbers(settings: CellsOptions) -> None:
    for name, least in (("seeds", 1), ("at_most", 0), ("jobs", 1)):
        value = getattr(settings, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")


def _check_writable(chosen: list[Cell], settings: CellsOptions) -> None:
    """Refuse to train into the results that were installed with the package."""
    if chosen and not settings.quick and settings.cells is None and locations.project() is None:
        raise UserError(
            f"{len(chosen)} cells are to be trained, and an installed package is not written to; give a folder for "
            "them with --cells DIR, or pass --at-most 0 to draw the cells that are available."
        )


def _chosen(cells: list[Cell], settings: CellsOptions, workspace: CellWorkspace) -> list[Cell]:
    """The cells to train: those of `only`, of them those that are missing, of them at most `at_most`."""
    if settings.only is not None:
        names = list(dict.fromkeys(name for cell in cells for name in (cell.method, cell.label)))
        if settings.only not in names:
            raise UserError(f"there is no method {settings.only!r} in {settings.id}; it has {', '.join(names)}.")
        cells = [cell for cell in cells if settings.only in (cell.method, cell.label)]
    missing = cells if settings.force else [cell for cell in cells if workspace.store.current(cell) is None]
    return missing if settings.at_most is None else missing[: settings.at_most]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMAND = Command(
    name="reproduce cells",
    summary="Train the networks of a table or figure that are missing, and draw it from all that are available.",
    example="uncollapse reproduce cells localization-fig6 --at-most 0 --out fig6",
    options=CellsOptions,
    run=run,
)
