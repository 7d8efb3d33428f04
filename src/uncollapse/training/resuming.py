"""What a run goes on from: the last good checkpoint, the metrics it knows, and whether anything is left to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from uncollapse import files

from . import checkpoints
from .processes import check_agreement, first_process, shared
from .recipe import Recipe
from .run_folder import RunFolder
from .tasks import Task


def is_finished(folder: RunFolder, recipe: Recipe) -> bool:
    """Whether a finished run is there as it was written; one that is damaged is named, and finished again."""
    try:
        status = folder.status()
    except ValueError as error:
        _say(f"{str(error).rstrip('.')}; it is written again.")
        folder.status_file.unlink()
        return False
    if status.get("status") != "finished":
        return False
    reason = folder.damage()
    if reason is None:
        step = status.get("step")
        return isinstance(step, int) and step >= (recipe.steps or 0)
    good, _ = checkpoints.last_good(folder.checkpoints)
    if good is None:
        raise ValueError(f"{reason}, and no checkpoint is left to restore it from; train it again with --force.")
    _say(f"{reason}; it is restored from {good}.")
    return False


def find_checkpoint(folder: RunFolder, task: Task, resume: bool) -> Path | None:
    """The checkpoint to go on from, the same in all processes, or None; raises if it was trained on other data."""
    step = None
    if first_process() and resume:
        good, faults = checkpoints.last_good(folder.checkpoints)
        for sentence in faults:
            _say(sentence)
        step = checkpoints.step_of(good) if good else None
    step = shared(step)
    if step is None:
        check_agreement(task.fingerprints)
        return None
    checkpoint = folder.checkpoints / f"checkpoint-{step}"
    manifest = checkpoint / files.MANIFEST
    seen = files.sha256(manifest) if manifest.is_file() else "absent"
    check_agreement({**task.fingerprints, f"the manifest of {checkpoint}": seen})
    before = checkpoints.manifest(checkpoint)
    for name, now in task.fingerprints.items():
        if before.get(name, now) != now:  # version 0.1 did not store them
            raise ValueError(
                f"the {name.removesuffix('_sha256')} has changed since {checkpoint} was written; "
                "bring it back, or choose another --out."
            )
    return checkpoint


def resume_metrics(folder: RunFolder, checkpoint: Path | None, history: list[dict[str, Any]], progress: bool) -> None:
    """Leave the metrics up to the checkpoint, and say from where the run goes on."""
    step = checkpoints.step_of(checkpoint) if checkpoint else -1
    missing = folder.resume_metrics(step, history)
    if missing:
        _say(f"{folder.metrics_file} was damaged; {missing} of {len(history)} lines were restored from {checkpoint}.")
    if checkpoint and progress:
        print(f"going on from step {step}", file=sys.stderr)


def _say(sentence: str) -> None:
    print(f"uncollapse train: {files.printable(sentence)}", file=sys.stderr)
