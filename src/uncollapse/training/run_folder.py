"""The run folder: its lock, its status, its metrics; whatever happens, what was written stays readable."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .recipe import Recipe

MAY_CHANGE = {"steps", "log_every", "eval_every", "save_every", "diagnose_every", "backend", "name", "parallel"}


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a run lie."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def metrics_file(self) -> Path:
        """One line of JSON for each set of numbers."""
        return self.path / "metrics.jsonl"

    @property
    def status_file(self) -> Path:
        """Running, finished, stopped or diverged."""
        return self.path / "status.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The trained model, as `save_pretrained` writes it."""
        return self.path / "model"

    @property
    def diagnosis(self) -> Path:
        """One saved diagnosis a diagnosed step."""
        return self.path / "diagnosis"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains in this folder meanwhile; the lock ends with the process, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"another process is training in {self.path}; wait for it, or choose another --out."
                ) from None
            yield

    def check(self, recipe: Recipe, resume: bool, force: bool) -> None:
        """Say why the folder cannot take this recipe, if so; nothing in it is changed."""
        if self.recipe_file.exists() and resume:
            self._same_run(recipe)
        elif self.recipe_file.exists():
            if not force:
                raise ValueError(
                    f"{self.path} holds a run already; pass --resume to go on with it, --force to replace it, "
                    "or choose another --out."
                )
        elif any(path.name != "lock" for path in self.path.iterdir()):
            raise ValueError(f"{self.path} holds files that are not of a run; choose another --out.")

    def begin(self, recipe: Recipe, resume: bool) -> None:
        """Note the recipe, now that its data and model have been found to be there; an earlier run goes."""
        if not resume:
            self._clear()
        write(self.recipe_file, recipe.to_yaml())

    def _same_run(self, recipe: Recipe) -> None:
        earlier = Recipe.find(self.path)
        for name in Recipe.__dataclass_fields__:
            before, now = getattr(earlier, name), getattr(recipe, name)
            if before != now and name not in MAY_CHANGE and not (name == "epochs" and recipe.steps):
                raise ValueError(
                    f"{self.path} was begun with {name} = {before}, not {now}; "
                    "resume it with the same keys, or choose another --out."
                )

    def _clear(self) -> None:
        for part in (self.checkpoints, self.model, self.diagnosis, self.path / "tensorboard"):
            shutil.rmtree(part, ignore_errors=True)
        for file in (self.metrics_file, self.status_file, self.recipe_file):
            file.unlink(missing_ok=True)

    def status(self) -> dict[str, Any]:
        """What `status.json` says; empty if there is none."""
        if not self.status_file.is_file():
            return {}
        found: dict[str, Any] = json.loads(self.status_file.read_text(encoding="utf-8"))
        return found

    def set_status(self, **values: Any) -> None:
        """Change entries of `status.json`."""
        write(self.status_file, json.dumps(self.status() | values, indent=1) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; a last line that a crash cut off is left out."""
        if not self.metrics_file.is_file():
            return []
        found = []
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found

    def cut_metrics(self, step: int) -> None:
        """Forget what came after the step from which a run goes on."""
        write(self.metrics_file, "".join(as_line(entry) for entry in self.metrics() if entry["step"] <= step))
        for folder in self.diagnosis.glob("step-*"):
            if int(folder.name.removeprefix("step-")) > step:
                shutil.rmtree(folder)

    def append_metrics(self, entries: list[Mapping[str, Any]]) -> None:
        """Add lines."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.writelines(as_line(entry) for entry in entries)


def as_line(entry: Mapping[str, Any]) -> str:
    """One line of JSON; what is not finite is null."""
    numbers = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()}
    return json.dumps(numbers) + "\n"


def write(path: Path, text: str) -> None:
    """Write a file so that it is whole at every moment: under another name first, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
