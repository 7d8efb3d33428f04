"""`uncollapse reproduce runs ID`: make the short runs of a study that are missing, and draw it from them all."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from uncollapse.cli.command import Command, UserError, option
from uncollapse.cli.output import output_folder

from .. import locations
from .output_files import DrawingOptions, write_result
from .reproduce import check_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..short_runs.network import RunSize
    from ..short_runs.store import RunStore
    from ..study import ShortRun, Study

LOSSES = ("held_out", "loss", "changes")  # in records: what a run is compared with its repetition by, whichever it has


@dataclass(frozen=True, kw_only=True)
class RunsOptions(DrawingOptions):
    """Options of `uncollapse reproduce runs`."""

    id: str = option(help="the study, for example warning; reproduce list shows all", positional=True)
    force: bool = option(False, "make every run again, and replace the files of an earlier run")
    results: Path | None = option(None, "folder with a folder for each study (default: the committed results)")
    only: str | None = option(None, "only the runs whose name has this text in it, for example 'rate 0.01 seed 0'")
    repeat: int = option(0, "make this many of the kept runs again, compare, and keep nothing")
    at_most: int | None = option(None, "make at most this many of the missing runs; 0: only draw")
    jobs: int = option(1, "number of runs to make at the same time")


def run(settings: RunsOptions) -> int:
    """Make what is missing and draw what is there; stopped at any time, it goes on where it was."""
    import torch

    from ..short_runs.network import TINY
    from ..short_runs.store import RunStore
    from ..study import STUDIES, make_runs

    check_command(settings.id, "runs")
    if settings.jobs < 1 or settings.repeat < 0 or (settings.at_most is not None and settings.at_most < 0):
        raise UserError("--jobs must be at least 1, --at-most and --repeat at least 0.")
    study, started = STUDIES[settings.id], time.perf_counter()
    torch.set_num_threads(1)  # the networks are too small to share
    if settings.repeat:
        return _repeat(study, settings)
    out = settings.out or Path(study.id)
    with ExitStack() as stack:
        trial = stack.enter_context(tempfile.TemporaryDirectory()) if settings.quick else None
        results = Path(trial) if trial else settings.results or locations.results()
        store = RunStore(results / study.id)
        size = TINY if trial else None
        chosen = _chosen(study, settings, store, size)
        if chosen and not trial and settings.results is None and locations.project() is None:
            raise UserError(
                f"{len(chosen)} runs are missing, and an installed package is not written to; give a folder for them "
                "with --results DIR, or pass --at-most 0 to draw those that are available."
            )
        folder = stack.enter_context(output_folder(out, settings.force or (out / f"{study.id}.json").is_file()))
        done: list[str] = []
        while chosen:
            known = len(done) + len(chosen)
            for name in make_runs(chosen, store, settings.jobs):
                done.append(name)
                print(f"{len(done)} of {known}: {name}", file=sys.stderr, flush=True)
            chosen = _chosen(study, settings, store, size, done)  # what the plan asks for once these are there
        if not store.records:
            raise UserError(f"no run of {study.id} is made yet; run it without --at-most 0.")
        result = study.result(results)
        written = write_result(folder, study.id, study.title, result, time.perf_counter() - started, settings)
    print("\n".join(result.sentences))
    print(f"\n{out}: {', '.join(written)}")
    return 0


def _chosen(
    study: Study, settings: RunsOptions, store: RunStore, size: RunSize | None, done: Sequence[str] = ()
) -> list[ShortRun]:
    """The runs to make next; what is `done` was made by this command."""
    from ..study import missing

    runs = study.runs(store.file.parent.parent, size)
    named = [run for run in runs if settings.only is None or settings.only in run.name]
    if not named:
        raise UserError(f"{study.id} has no run with {settings.only!r} in its name, such as {runs[0].name!r}.")
    left = [run for run in (named if settings.force else missing(named, store)) if run.name not in done]
    return left if settings.at_most is None else left[: settings.at_most - len(done)]


def _repeat(study: Study, settings: RunsOptions) -> int:
    """Make some of the kept runs again, and say how far their held-out losses are from those that are kept."""
    from ..short_runs.store import RunStore, numbers_of
    from ..study import make_runs, missing

    results = settings.results or locations.results()
    store = RunStore(results / study.id)
    runs = [run for run in study.runs(results) if settings.only is None or settings.only in run.name]
    lacking = {run.name for run in missing(runs, store)}
    kept = [run for run in runs if run.name not in lacking]
    chosen = random.sample(kept, min(settings.repeat, len(kept)))
    if not chosen:
        raise UserError(f"no run of {study.id} is kept that could be repeated; make it first.")
    far = 0.0
    with tempfile.TemporaryDirectory() as folder:
        again = RunStore(Path(folder))
        for name in make_runs(chosen, again, settings.jobs):
            key = next(key for key in LOSSES if key in store.records[name])
            old, new = (numbers_of(records[name][key]) for records in (store.records, again.records))
            gap = float("inf") if len(old) != len(new) else float(abs(new - old).max() / abs(old).max())
            far = max(far, gap)
            print(f"{name}: {f'the same to {gap:.1e}' if gap < float('inf') else 'ended elsewhere'}", flush=True)
    print(f"{len(chosen)} of {len(kept)} runs made again: held-out losses differ by at most {far:.1e} of their value.")
    return 0


COMMAND = Command(
    name="reproduce runs",
    summary="Make the short runs of a study that are missing, and draw it from all that are available.",
    example="uncollapse reproduce runs warning --at-most 0 --out warning",
    options=RunsOptions,
    run=run,
)
