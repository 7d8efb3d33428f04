"""The run folder: its lock, its status and its metrics, readable whatever happens to the process that writes them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncollapse import files

from .recipe import Recipe

FIRST = ("step", "epoch", "seconds")  # in a line of metrics
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
        """Running, finished, stopped, diverged or failed."""
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
            link = next((part for part in self._parts() if part.is_symlink()), None)
            if link is not None:
                raise ValueError(
                    f"{link} is a link to {link.readlink()}, which --force does not delete; remove it, "
                    "or choose another --out."
                )
        elif not all(self._is_of_a_start(path) for path in self.path.iterdir()):
            raise ValueError(
                f"{self.path} holds files that are not of a run: there is no {self.recipe_file}; bring it back, "
                "or choose another --out."
            )

    def _is_of_a_start(self, path: Path) -> bool:
        """Whether a run that was killed before it had written its recipe may have left this."""
        empty = path == self.checkpoints and path.is_dir() and not any(path.iterdir())
        return empty or path == self.lock_file or files.is_temporary(path)

    def begin(self, recipe: Recipe, resume: bool) -> None:
        """Write the recipe, now that its data and model have been found; an earlier run goes, unless it is resumed."""
        for part in (self.unfinished_model, *([] if resume else self._parts())):
            try:
                _remove(part)
            except OSError as error:
                raise ValueError(
                    f"{part} could not be removed ({error.strerror or error}); remove it, or choose another --out."
                ) from error
        files.remove_leftovers(self.path)
        files.write(self.recipe_file, recipe.to_yaml())
        files.make_folder(self.checkpoints)

    def _same_run(self, recipe: Recipe) -> None:
        earlier = Recipe.find(self.path)
        for name in Recipe.__dataclass_fields__:
            before, now = getattr(earlier, name), getattr(recipe, name)
            if before != now and name not in MAY_CHANGE and not (name == "epochs" and recipe.steps):
                raise ValueError(
                    f"{self.path} was begun with {name} = {before}, not {now}; "
                    "resume it with the same keys, or choose another --out."
                )

    def _parts(self) -> list[Path]:
        """What a run leaves; the recipe, by which the folder is known as a run, is last."""
        folders = [self.checkpoints, self.model, self.unfinished_model, self.diagnosis, self.path / "tensorboard"]
        return [*folders, self.metrics_file, self.status_file, self.recipe_file]

    def status(self) -> dict[str, Any]:
        """The entries of `status.json`; empty if there is no such file."""
        if not self.status_file.is_file():
            return {}
        return files.json_object(files.read_text(self.status_file), f"{self.status_file} is damaged: its content")

    def set_status(self, **values: Any) -> None:
        """Change entries of `status.json`."""
        files.write(self.status_file, json.dumps(self.status() | values, indent=1) + "\n")

    def finish(self, **values: Any) -> None:
        """Change `status.json` to finished, with the digests by which later damage is noticed."""
        files.sync(self.metrics_file)
        digests = {file.name: files.sha256(file) for file in (self.recipe_file, self.metrics_file)}
        self.set_status(status="finished", sha256=digests, **values)

    def damage(self) -> str | None:
        """What is wrong with a finished run, or None; a run of version 0.1 need only have weights."""
        digests = self._digests()
        if not digests:
            return None if any(self.model.glob("*.safetensors")) else f"{self.model} holds no weights"
        for file in (self.recipe_file, self.metrics_file):
            if not file.is_file() or files.sha256(file) != digests.get(file.name):
                return f"{file} is not what the run wrote"
        reason = files.fault(self.model)
        return f"{self.model} is damaged: {reason}" if reason else None

    def _digests(self) -> dict[str, str]:
        """sha256 of the files of a finished run by name; empty for others, and for runs of version 0.1."""
        status = self.status()
        digests = status.get("sha256") if status.get("status") == "finished" else None
        return digests if isinstance(digests, dict) else {}

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; a last line that a crash cut off is left out."""
        if not self.metrics_file.is_file():
            return []
        digest = self._digests().get(self.metrics_file.name)
        if digest is not None and files.sha256(self.metrics_file) != digest:
            raise ValueError(
                f"{self.metrics_file} is damaged: it is not what the run wrote; restore it with train --resume."
            )
        *lines, _ = files.read_text(self.metrics_file).split("\n")  # after the last line end: cut off
        return [
            files.json_object(line, f"{self.metrics_file} is damaged: line {number}")
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]

    def resume_metrics(self, step: int, history: list[dict[str, Any]]) -> int:
        """Keep the metrics and diagnoses up to `step`, from which the run goes on.

        `history` is what the checkpoint knows of the metrics. If any of it is missing in the file, the file is written
        from it.

        Returns:
            The number of lines that were missing.
        """
        kept = [entry for entry in self._readable_metrics() if entry["step"] <= step]
        there = {as_line(entry, sort_keys=True) for entry in kept}
        missing = sum(as_line(entry, sort_keys=True) not in there for entry in history)
        files.write(self.metrics_file, "".join(as_line(entry) for entry in (history if missing else kept)))
        for folder in self.diagnosis.glob("step-*"):
            number = folder.name.removeprefix("step-")
            if number.isdecimal() and int(number) > step:  # others are the user's
                shutil.rmtree(folder)
        return missing

    def _readable_metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl` that are whole, whatever the others are."""
        found: list[dict[str, Any]] = []
        if self.metrics_file.is_file():
            for line in self.metrics_file.read_text(encoding="utf-8", errors="replace").split("\n"):
                with suppress(ValueError):
                    found.append(files.json_object(line, "it"))
        return [entry for entry in found if isinstance(entry.get("step"), int)]

    def append_metrics(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Add one line for each entry."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.writelines(as_line(entry) for entry in entries)


def as_line(entry: Mapping[str, Any], sort_keys: bool = False) -> str:
    """One line of JSON, step and time first; numbers that are not finite become null."""
    ordered = {name: entry[name] for name in FIRST if name in entry} | dict(entry)
    numbers = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in ordered.items()}
    return json.dumps(numbers, sort_keys=sort_keys) + "\n"


def _remove(path: Path) -> None:
    """Remove a file or folder, or nothing if it is not there; raises if it stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
