"""Verified checkpoints: one is used only if its manifest, which is written last, matches every file."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from uncollapse import files

KEPT = 2
STATE = "trainer_state.json"
NEEDED = {  # what a run goes on from, and the names that the Trainer gives its files: replicated or sharded
    "weights": ("model*.safetensors", "pytorch_model_fsdp*"),
    "optimizer": ("optimizer.pt", "optimizer.bin", "optimizer_*/*"),
    "scheduler": ("scheduler.pt",),
    "state of the trainer": (STATE,),
}


def seal(checkpoint: Path, *, processes: int, **about: Any) -> None:
    """Write the manifest of a finished checkpoint: its step, the number of processes, `about`, and every file."""
    lacking = _lacking([file.relative_to(checkpoint).as_posix() for file in checkpoint.rglob("*")], processes)
    if lacking:
        raise OSError(f"no file holds the {lacking}")
    files.seal(checkpoint, step=step_of(checkpoint), processes=processes, **about)


def manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a checkpoint; raises a ValueError that says what is wrong with it."""
    try:
        return files.read_manifest(checkpoint)
    except ValueError:
        if earlier := _of_version_0_1(checkpoint):
            return earlier
        raise


def _of_version_0_1(checkpoint: Path) -> dict[str, Any] | None:
    """A manifest of version 0.1, which held the files alone, in today's form."""
    try:
        entries = json.loads((checkpoint / files.MANIFEST).read_text(encoding="utf-8"))
        step = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    known = isinstance(entries, dict) and STATE in entries and all(isinstance(e, dict) for e in entries.values())
    return {"step": step, "processes": None, "files": entries} if known else None


def fault(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be used, or None if it verifies."""
    try:
        found = manifest(checkpoint)
    except ValueError as error:
        return str(error)
    if found.get("step") != step_of(checkpoint):
        return f"its manifest says step {found.get('step')}"
    lacking = _lacking(list(found["files"]), found.get("processes"))
    if lacking:
        return f"its manifest names no file with the {lacking}"
    return files.changed_file(checkpoint, found["files"])


def _lacking(names: list[str], processes: int | None) -> str | None:
    """What none of the files holds of all that a run needs to go on, or None."""
    if isinstance(processes, int) and processes > 1:
        random = {f"random state of process {rank}": (f"rng_state_{rank}.pth",) for rank in range(processes)}
    else:
        random = {"random state": ("rng_state*.pth",)}
    for what, patterns in (NEEDED | random).items():
        if not any(fnmatch(name, pattern) for name in names for pattern in patterns):
            return what
    return None


def history(checkpoint: Path) -> list[dict[str, Any]]:
    """The metrics that had been logged when the checkpoint was written, one entry per line of `metrics.jsonl`."""
    entries: list[dict[str, Any]] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["log_history"]
    return entries


def step_of(checkpoint: Path) -> int:
    """The step at which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def newest_first(folder: Path) -> list[Path]:
    """All checkpoints of a folder, complete or not."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=step_of, reverse=True)


def last_good(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a sentence for each newer one that does not."""
    warnings: list[str] = []
    for checkpoint in newest_first(folder):
        reason = fault(checkpoint)
        if reason is None:
            return checkpoint, warnings
        warnings.append(f"{checkpoint} is not used: {reason}.")
    return None, warnings


def rotate(folder: Path, trusted: Path | None = None) -> None:
    """Remove all but the newest two checkpoints that verify; `trusted`, just sealed, is not read again."""
    good = 0
    for checkpoint in newest_first(folder):
        if good < KEPT and (checkpoint == trusted or fault(checkpoint) is None):
            good += 1
        else:
            shutil.rmtree(checkpoint, ignore_errors=True)
