"""Run folders as they lie on disk: recipe, metrics, status and diagnoses, read and checked."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from uncollapse import files
from uncollapse.diagnosis import Diagnosis

from ..recipe import read_keys
from ..run_folder import RunFolder

LARGEST_STEP = 2**63 - 1  # of a column of pandas
DIAGNOSIS = re.compile(r"step-(\d{1,15})")


@dataclass(frozen=True, eq=False)  # tables are not compared
class RecordedRun:
    """One run folder; `metrics` is long: step, measure, value."""

    folder: Path
    recipe: Mapping[str, Any]
    status: Mapping[str, Any]
    metrics: pd.DataFrame

    @property
    def name(self) -> str:
        """What to call it in a sentence: its folder, with the one above for `seed-0`."""
        path = self.folder.resolve()
        return f"{path.parent.name}/{path.name}" if is_seed(path) else path.name

    @property
    def task(self) -> str:
        """What was trained: "language" or "images"; a probe is trained on images."""
        task = str(self.recipe.get("task", "unknown"))
        return "images" if task == "probe" else task

    @property
    def seed(self) -> Any:
        """The seed, as the recipe has it."""
        return self.recipe.get("seed")

    @property
    def finished(self) -> bool:
        """Whether it ran to its end."""
        return self.status.get("status") == "finished"

    @cached_property
    def state(self) -> str:
        """Whether it is finished, or else how far it came and why it ended there, for use in a sentence."""
        if self.finished:
            return "finished"
        status = self.status.get("status")
        words = {"diverged": "diverged", "stopped": "was stopped"}.get(str(status), "is unfinished")
        if status == "running":
            words = (
                "is still training"
                if files.is_locked(RunFolder(self.folder).lock_file)
                else "is unfinished (it was ended from outside)"
            )
        step, steps = self.status.get("step", self.last_step), self.status.get("steps", self.recipe.get("steps"))
        reason = str(self.status.get("reason") or "").strip().rstrip(".")
        return f"{words} at step {step}{f' of {steps}' if steps else ''}{f': {reason}' if reason else ''}"

    @property
    def last_step(self) -> int:
        """The last step with metrics."""
        return int(self.metrics["step"].max())

    def final(self, measure: str) -> float | None:
        """The last value of a measure; None if it was never logged or is not finite."""
        values = self.metrics.loc[self.metrics["measure"] == measure, "value"]
        return None if values.empty or not math.isfinite(values.iloc[-1]) else float(values.iloc[-1])

    @cached_property
    def diagnoses(self) -> dict[int, Path]:
        """The saved diagnoses by step."""
        folders = (self.folder / "diagnosis").glob("step-*/diagnosis.json")
        named = ((DIAGNOSIS.fullmatch(file.parent.name), file.parent) for file in folders)
        return dict(sorted((int(found[1]), folder) for found, folder in named if found))

    @cached_property
    def last_diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the last diagnosed step; None if there is none."""
        return Diagnosis.load(list(self.diagnoses.values())[-1]) if self.diagnoses else None


def is_seed(folder: Path) -> bool:
    """Whether a folder is one of those that `--seeds` makes."""
    return folder.name.startswith("seed-")


def read_runs(folders: Sequence[str | os.PathLike[str]]) -> list[RecordedRun]:
    """The runs in the folders; one that holds `seed-*` runs stands for those. A run given twice counts once."""
    found: dict[Path, RecordedRun] = {}
    for given in folders:
        folder = Path(given)
        seeds = [] if _is_run(folder) else sorted(f for f in folder.glob("seed-*") if _is_run(f))
        for run_folder in seeds or [folder]:
            found.setdefault(run_folder.resolve(), read_run(run_folder))
    return list(found.values())


def read_run(folder: Path) -> RecordedRun:
    """Read one run folder; raises if it is none or is damaged."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; give the folder that uncollapse train --out wrote.")
    if not _is_run(folder):
        raise ValueError(f"{folder} is no run: it holds neither recipe.yaml nor seed-* folders with one.")
    return RecordedRun(folder, read_keys(folder / "recipe.yaml"), _status(folder), _metrics(folder))


def _is_run(folder: Path) -> bool:
    return (folder / "recipe.yaml").is_file()


def _status(folder: Path) -> dict[str, Any]:
    """What is in `status.json`, lists and objects aside: of those, no comparison needs any."""
    return {k: v for k, v in RunFolder(folder).status().items() if isinstance(v, str | int | float | None)}


def _metrics(folder: Path) -> pd.DataFrame:
    rows: list[tuple[int, str, float]] = []
    for number, entry in enumerate(RunFolder(folder).metrics(), start=1):
        step = entry.pop("step", 0)
        if not isinstance(step, int) or abs(step) > LARGEST_STEP:
            raise ValueError(f"{RunFolder(folder).metrics_file} is damaged: line {number} has no whole number as step.")
        numbers = {n: float("nan") if v is None else v for n, v in entry.items()}
        rows += [(step, name, _float(value)) for name, value in numbers.items() if isinstance(value, int | float)]
    if not rows:
        raise ValueError(f"{folder} has no metrics yet (metrics.jsonl is missing or empty); let it train first.")
    return pd.DataFrame(rows, columns=["step", "measure", "value"])


def _float(value: float) -> float:
    """An integer may be too large for a float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
