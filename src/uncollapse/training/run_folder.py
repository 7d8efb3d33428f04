"""The run folder: its lock, its status and its metrics, readable whatever happens to the process that writes them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncollapse import files

from .recipe import Recipe

MAY_CHANGE = {"steps", "log_every", "eval_every", "save_every", "diagnose_every", "backend", "name", "parallel"}


@dataclass(frozen=True)
class RunFolder:
    """Paths of the parts of a run, and how they are read and written."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def metrics_file(self) -> Path:
        """One line of JSON for each logged step."""
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
    def unfinished_model(self) -> Path:
        """Where all processes of a run write the model before it is renamed; so its name is known beforehand."""
        return self.path / ".model"

    @property
    def lock_file(self) -> Path:
        """Locked while a process trains here."""
        return self.path / "lock"

    @property
    def diagnosis(self) -> Path:
        """One saved diagnosis for each diagnosed step."""
        return self.path / "diagnosis"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder; the lock ends with the process, however that ends."""
        with ExitStack() as stack:
            try:
                stack.enter_context(files.lock(self.lock_file, wait=False))
            except files.LockedError:
                raise ValueError(
                    f"another process is training in {self.path}; wait for it, or choose another --out."
                ) from None
            yield

    def check(self, recipe: Recipe, resume: bool, force: bool) -> None:
        """Raise if the folder cannot take this recipe; nothing in it is changed."""
        if self.recipe_file.exists() and resume:
            self._same_run(recipe)
        elif self.recipe_file.exists():
            if not force:
                raise ValueError(
                    f"{self.path} holds a run already; pass --resume to go on with it, --force to replace it, "
                    "or choose another --out."
                )
        elif any(path != self.lock_file and not files.is_temporary(path) for path in self.path.iterdir()):
            raise ValueError(f"{self.path} holds files that are not of a run; choose another --out.")

    def begin(self, recipe: Recipe, resume: bool) -> None:
        """Write the recipe, now that its data and model have been found; an earlier run goes, unless it is resumed."""
        if not resume:
            self._clear()
        shutil.rmtree(self.unfinished_model, ignore_errors=True)
        files.remove_leftovers(self.path)
        files.write(self.recipe_file, recipe.to_yaml())

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
        """The entries of `status.json`; empty if there is no such file."""
        if not self.status_file.is_file():
            return {}
        text = self.status_file.read_text(encoding="utf-8")
        return files.json_object(text, f"{self.status_file} is damaged: its content")

    def set_status(self, **values: Any) -> None:
        """Change entries of `status.json`."""
        files.write(self.status_file, json.dumps(self.status() | values, indent=1) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; a last line that a crash cut off is left out."""
        if not self.metrics_file.is_file():
            return []
        *lines, _ = self.metrics_file.read_text(encoding="utf-8").split("\n")  # after the last line end: cut off
        return [
            files.json_object(line, f"{self.metrics_file} is damaged: line {number}")
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]

    def cut_metrics(self, step: int) -> None:
        """Remove metrics and diagnoses of steps after `step`, from which the run goes on."""
        files.write(self.metrics_file, "".join(as_line(entry) for entry in self.metrics() if entry["step"] <= step))
        for folder in self.diagnosis.glob("step-*"):
            if int(folder.name.removeprefix("step-")) > step:
                shutil.rmtree(folder)

    def append_metrics(self, entries: list[Mapping[str, Any]]) -> None:
        """Add one line for each entry."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.writelines(as_line(entry) for entry in entries)


def as_line(entry: Mapping[str, Any]) -> str:
    """One line of JSON; numbers that are not finite become null."""
    numbers = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()}
    return json.dumps(numbers) + "\n"
