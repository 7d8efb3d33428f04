"""`uncollapse reproduce ID` where ID needs trained networks: train the missing cells, then draw those that are in."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from uncollapse.cli.command import UserError
from uncollapse.cli.output import output_folder

from .reproduce import Settings, circumstances, write_result

if TYPE_CHECKING:
    from ..artefact import Artefact
    from ..cells.cell import Budget, Cell
    from ..cells.running import CellWorkspace


def run_artefact(settings: Settings, artefact: Artefact) -> int:
    """Train what is missing and draw what is there; a signal ends it after a checkpoint."""
    from ..artefact import ArtefactCells
    from ..cells.running import CellWorkspace, StoppedError, run_cells, work_folder
    from ..cells.store import Store

    _check(settings)
    budget: Budget = "tiny" if settings.quick else settings.budget
    out = settings.out or Path(artefact.id)
    with ExitStack() as stack:
        folder = stack.enter_context(output_folder(out, settings.force or (out / f"{artefact.id}.json").is_file()))
        store, work = settings.cells, settings.work or work_folder()
        if settings.quick:  # a trial leaves nothing among the results
            store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            work = settings.work or store / "runs"
        workspace = CellWorkspace(Store(store), work, progress=sys.stderr.isatty())
        cells = artefact.all_cells(budget, settings.seeds)
        started = time.perf_counter()
        try:
            run_cells(
                _chosen(cells, settings, workspace), workspace, jobs=settings.jobs, force=settings.force, say=_say
            )
        except StoppedError as stopped:
            print(f"uncollapse reproduce: {stopped}", file=sys.stderr)
            return 128 + (signal.SIGTERM if "SIGTERM" in str(stopped) else signal.SIGINT)
        found_cells = ArtefactCells(artefact, cells, workspace.store)
        if not found_cells.records:
            raise UserError(f"no cell of {artefact.id} is in yet; run it without --at-most 0.")
        result = artefact.result(found_cells)
        record = {"figure": artefact.id, **circumstances(settings, result.settings, time.perf_counter() - started)}
        write_result(folder, artefact.id, artefact.title, result, record, settings)
        written = sorted(file.name for file in folder.iterdir())
    print("\n".join(result.sentences))
    print(f"\n{out}: {', '.join(written)}")
    return 0


def _check(settings: Settings) -> None:
    for name, least in (("seeds", 1), ("at_most", 0), ("jobs", 1)):
        value = getattr(settings, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")


def _chosen(cells: list[Cell], settings: Settings, workspace: CellWorkspace) -> list[Cell]:
    """The cells to run: those of the method asked for, those that are missing, as many as asked for."""
    if settings.only is not None:
        labels = list(dict.fromkeys(cell.label for cell in cells))
        if settings.only not in labels:
            raise UserError(f"there is no method {settings.only!r} in {settings.id}; it has {', '.join(labels)}.")
        cells = [cell for cell in cells if cell.label == settings.only]
    missing = cells if settings.force else [cell for cell in cells if workspace.store.current(cell) is None]
    return missing if settings.at_most is None else missing[: settings.at_most]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
