"""Studies of our own that are made of short runs: what the runs are, where they are kept, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .short_runs.store import FILE, RunRecord, RunStore

if TYPE_CHECKING:
    from .figure import Result
    from .short_runs.network import RunSize


@dataclass(frozen=True)
class ShortRun:
    """One run of a study: its name, what tells its definition from an older one, and the function that makes it."""

    name: str
    definition: str
    make: Callable[[], RunRecord]


@dataclass(frozen=True)
class Study:
    """An entry of the registry; MODULE.py has `runs(results, size)` and `result(results)`."""

    id: str
    title: str
    module: str
    time: str

    def runs(self, results: Path, size: RunSize | None = None) -> list[ShortRun]:
        """All runs; `results` is the folder with a folder for each study. A size other than the usual is a trial."""
        found: list[ShortRun] = self._module().runs(results, size)
        return found

    def result(self, results: Path) -> Result:
        """Table, chart and sentences from the runs that are kept."""
        found: Result = self._module().result(results)
        return found

    def evidence(self, results: Path) -> dict[str, str]:
        """One sentence for each remedy that it has tested; MODULE.py may have `evidence(results)`."""
        tell = getattr(self._module(), "evidence", None)
        return {} if tell is None or not self.is_kept(results) else tell(results)

    def is_kept(self, results: Path) -> bool:
        """Whether there are runs of it."""
        return (results / self.id / FILE).is_file()

    def _module(self) -> Any:
        return import_module(f".{self.module}", __package__)


STUDIES = {
    study.id: study
    for study in (
        Study("remedies-rates", "How much the learning rate matters, by remedy", "remedies.study", "60 min"),
        Study("warning", "How early a run that fails can be told, and from what", "warning.study", "25 min"),
        Study("retrofit", "What a remedy does to a model that is trained already", "retrofit.study", "12 min"),
        Study("rescue", "What rescues a run at the first warning", "rescue.study", "25 min"),
        Study("remedies-depth", "What trains without residual connections, or without norms", "depth.study", "50 min"),
    )
}


def missing(runs: Sequence[ShortRun], store: RunStore) -> list[ShortRun]:
    """The runs that are not kept as they are defined now."""
    return [run for run in runs if store.current(run.name, run.definition) is None]


def make_runs(runs: Sequence[ShortRun], store: RunStore, jobs: int = 1) -> Iterator[str]:
    """Make runs and keep them; gives the name of each as soon as it is kept."""
    if jobs == 1:
        for run in runs:
            store.add(run.name, {"definition": run.definition} | run.make())
            yield run.name
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_use_one_thread) as pool:
        waiting = {pool.submit(run.make): run for run in runs}
        for future in as_completed(waiting):
            run = waiting[future]
            store.add(run.name, {"definition": run.definition} | future.result())
            yield run.name


def _use_one_thread() -> None:
    """The networks are too small to share."""
    import torch

    torch.set_num_threads(1)
