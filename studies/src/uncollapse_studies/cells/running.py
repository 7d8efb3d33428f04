"""Run a cell: take it from the store, from another cell that trained the same network, or train it, and keep it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from uncollapse.bench.machine import describe_machine
from uncollapse.files import cache_root
from uncollapse.training.run_folder import RunFolder

from .biases import entropy_without_query_bias
from .cell import Cell
from .measured import measure, round_to
from .store import Record, Store

CellOutcome = Literal["there", "taken over", "trained"]


class StoppedError(Exception):
    """A signal ended the training of a cell; the same command goes on from its last checkpoint."""


@dataclass(frozen=True)
class CellWorkspace:
    """Where cells are kept and where they are trained."""

    store: Store
    work: Path
    progress: bool = True

    def folder(self, cell: Cell) -> Path:
        """The run folder of a cell; cells that train the same network share it."""
        return self.work / f"{cell.recipe}-{cell.definition}"


def work_folder() -> Path:
    """Where cells are trained by default: `cells` in the user's cache."""
    return cache_root() / "cells"


def run_cell(cell: Cell, workspace: CellWorkspace, force: bool = False) -> CellOutcome:
    """Make sure that the store holds the cell as it is defined now."""
    if not force:
        if workspace.store.current(cell) is not None:
            return "there"
        if take_over(cell, workspace.store):
            return "taken over"
    if force:
        shutil.rmtree(workspace.folder(cell), ignore_errors=True)
    began = time.perf_counter()
    status = train_cell(cell, workspace)
    found = measure(workspace.folder(cell))
    record = {
        **_about(cell),
        "numbers": _numbers(cell, found.numbers, workspace.folder(cell)),
        "curves": found.curves,
        "epochs": found.epochs,
        "held_out_loss": found.trend,
        "status": status["status"],
        "reason": status["reason"],
        "parameters": status["parameters"],
        "training_seconds": status["seconds"],
        "seconds": round(time.perf_counter() - began, 1),  # of this command, data and diagnoses included
        **_circumstances(),
    }
    if found.tables:
        record["tables"] = cell.name
    workspace.store.write(cell, record, found.tables)
    shutil.rmtree(RunFolder(workspace.folder(cell)).checkpoints, ignore_errors=True)  # the model is kept for probes
    return "trained"


def take_over(cell: Cell, store: Store) -> bool:
    """Copy the numbers of a cell that trained the same network; its tables are not copied but named."""
    found = store.same_training(cell)
    if found is None:
        return False
    record, file = found
    store.write(cell, record | _about(cell) | {"taken_from": file.stem}, None)
    return True


def train_cell(cell: Cell, workspace: CellWorkspace) -> dict[str, Any]:
    """Train, or go on training, in the cell's run folder; returns the status of the run."""
    from uncollapse.training.run import train

    model = None
    if cell.base is not None:
        base = workspace.folder(cell.base)
        if RunFolder(base).status().get("status") != "finished" or not RunFolder(base).model.is_dir():
            train_cell(cell.base, workspace)
        model = str(base)
    run = train(cell.resolved(model), workspace.folder(cell), resume=True, progress=workspace.progress)
    if run.status == "stopped":
        raise StoppedError(f"{cell.name} was {run.reason.split(';')[0]}; the same command goes on from there.")
    return RunFolder(run.folder).status()


def _about(cell: Cell) -> Record:
    return {
        "artefact": cell.artefact,
        "method": cell.method,
        "label": cell.label,
        "seed": cell.seed,
        "settings": cell.settings,
        "definition": cell.definition,
        "recipe": cell.recipe,
        "keys": dict(cell.keys),
    }


def _numbers(cell: Cell, numbers: dict[str, float], run: Path) -> dict[str, float]:
    """In the second paper's cells with the entropy that W_QK alone leaves."""
    if "entropy_mean" not in numbers or "kappa_mean" not in cell.keys or not RunFolder(run).model.is_dir():
        return numbers
    return numbers | {"entropy_without_bias": round_to(entropy_without_query_bias(run))}


def _circumstances() -> Record:
    machine = dict(describe_machine())
    versions = {name: machine.pop(name) for name in ("uncollapse", "python")}
    packages: Any = machine.pop("packages")
    return {"versions": versions | {name: v for name, v in packages.items() if v is not None}, "machine": machine}


def run_cells(
    cells: Sequence[Cell],
    workspace: CellWorkspace,
    *,
    jobs: int = 1,
    force: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> None:
    """Run cells, several at a time if asked; cells that train the same network one after the other."""
    total = len(cells)
    if jobs == 1 or total < 2:
        for number, cell in enumerate(cells, start=1):
            _announce(cell, workspace.store, say, f"{number} of {total}")
            began = time.perf_counter()
            outcome = run_cell(cell, workspace, force)
            say(f"  {outcome}, {time.perf_counter() - began:.0f} s")
        return
    quiet = replace(workspace, progress=False)
    first, again = _distinct(cells)
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_begin_worker, initargs=(jobs,)
    ) as pool:
        waiting = [(cell, pool.submit(run_cell, cell, quiet, force)) for cell in first]
        for number, (cell, future) in enumerate(waiting, start=1):
            say(f"cell {number} of {total}: {cell.name}: {future.result()}")
    for cell in again:
        say(f"{cell.name}: {run_cell(cell, workspace)}")


def _distinct(cells: Iterable[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The first cell of each training (or of each model that is probed), and the others."""
    first: dict[str, Cell] = {}
    again = []
    for cell in cells:
        key = cell.definition
        if key in first:
            again.append(cell)
        else:
            first[key] = cell
    return list(first.values()), again


def _announce(cell: Cell, store: Store, say: Callable[[str], object], count: str) -> None:
    changed = store.read(cell) is not None and store.current(cell) is None
    say(f"cell {count}: {cell.name}" + ("; its definition has changed since it was run, so it is run again" * changed))


def _begin_worker(jobs: int) -> None:
    """A share of the cores, and no bars of libraries: several processes write to one terminal."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    disable_progress_bar()  # type: ignore[no-untyped-call]
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent takes its workers along; their runs go on from the last checkpoint."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
