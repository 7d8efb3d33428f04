"""train(): from a recipe to a run folder with metrics, checkpoints, diagnoses and the trained model."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, TrainerCallback, set_seed
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from uncollapse import __version__, files
from uncollapse.models import from_pretrained
from uncollapse.remedies import LocaterCallback

from . import checkpoints
from .callbacks import AlphaWarmup, MetricsFile, OnStep, Progress, RunDiagnosis, StepCallback, StepTimer
from .model import rule_of
from .processes import first_process, join_after_restart
from .recipe import Recipe, resolve
from .run_folder import RunFolder
from .stopping import StopConditions
from .tasks import Task, task_of
from .trainer import RunTrainer, every


@dataclass(frozen=True)
class Run:
    """A run folder and how its training ended."""

    folder: Path
    status: str  # finished, stopped or diverged
    reason: str  # a sentence unless finished

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return RunFolder(self.folder).metrics()

    @property
    def model(self) -> PreTrainedModel:
        """The trained model."""
        return from_pretrained(RunFolder(self.folder).model)

    def final(self, name: str) -> float:
        """The last value of a metric, such as `eval_loss`."""
        return float(next(line[name] for line in reversed(self.metrics) if line.get(name) is not None))


def train(
    recipe: str | Path | Recipe | Mapping[str, Any],
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    on_step: OnStep | None = None,
    **keys: Any,
) -> Run:
    """Train a recipe into a run folder.

    Args:
        recipe: name of a shipped recipe, a YAML file, a run folder, a `Recipe`, or a mapping of keys.
        out: the run folder; by default `runs/NAME`.
        resume: go on from the last good checkpoint of the folder, or start if there is none.
        force: replace an earlier run in the folder.
        progress: show a bar on a terminal.
        on_step: called after each update with the step and the training loss last logged (None before the first).
        keys: keys of the recipe to change.

    Returns:
        The run. One that was stopped by a signal, or whose loss diverged, says so in `status` and `reason`.

    >>> import tempfile, uncollapse as uc
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = uc.train("quickstart", folder + "/run", steps=2, layers=1, width=16, heads=2, length=16,
    ...                    batch_size=2, eval_examples=2, diagnose_every=0, progress=False)
    ...     run.status, [line["step"] for line in run.metrics]
    ('finished', [2, 2])
    """
    resolved = resolve(recipe, **keys)
    folder = RunFolder(Path(out) if out is not None else Path("runs") / resolved.name)
    with _quiet_libraries(), _tensorboard_in(folder.path / "tensorboard"), _ready(folder, resolved, resume, force):
        if resume and _is_finished(folder, resolved):
            return Run(folder.path, "finished", "")
        return _train(resolved, folder, resume, progress, on_step)


def _is_finished(folder: RunFolder, recipe: Recipe) -> bool:
    status = folder.status()
    return status.get("status") == "finished" and folder.model.is_dir() and status["step"] >= (recipe.steps or 0)


def train_seeds(recipe: Recipe, out: Path, seeds: int, **how: Any) -> list[Run]:
    """Train the same recipe with seeds 0, 1, ..., each in its own folder `seed-N`."""
    return [train(recipe, out / f"seed-{seed}", seed=seed, **how) for seed in range(seeds)]


def _train(recipe: Recipe, folder: RunFolder, resume: bool, progress: bool, on_step: OnStep | None) -> Run:
    join_after_restart()
    set_seed(recipe.seed)
    task = task_of(recipe)
    model = task.build()
    if first_process():
        folder.begin(recipe, resume)
    stopping, clock = StopConditions(task.guessing), _clock(recipe, task, folder)
    trainer = RunTrainer(recipe, task, folder, model=model, callbacks=[clock])
    trainer.remove_callback(transformers.PrinterCallback)
    stopping.trainer = trainer
    watching: list[TrainerCallback] = [
        MetricsFile(folder, clock),
        Progress(recipe.name or folder.path.name, progress),
        *([StepCallback(on_step)] if on_step else []),
    ]
    for callback in [*_callbacks(recipe, task, folder, trainer.updates, progress), *watching, stopping]:
        trainer.add_callback(callback)  # in this order: numbers, then what writes them; the decision to stop comes last
    checkpoint = _checkpoint(folder, trainer, progress)
    about = {
        "steps": trainer.updates,
        "reason": "",
        "tokenizer_sha256": task.tokenizer_sha256,
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {
            "uncollapse": __version__,
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
        },
    }
    _say(trainer, status="running", step=0 if checkpoint is None else checkpoints.step_of(checkpoint), **about)
    set_seed(recipe.seed + trainer.args.process_index)  # processes draw different dropout
    try:
        if checkpoint is not None and checkpoints.step_of(checkpoint) >= trainer.updates:
            trainer._load_from_checkpoint(str(checkpoint))
            trainer.state = transformers.TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        else:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        stopping.release()
    return _finish(trainer, stopping, clock)


def _finish(trainer: RunTrainer, stopping: StopConditions, clock: StepTimer) -> Run:
    """Evaluate and save the model, or record why the run ended early."""
    step, folder = trainer.state.global_step, trainer.folder
    ended = {"step": step, "seconds": round(clock.seconds, 3), "peak_memory_bytes": peak_memory()}
    if stopping.diverged:
        good, _ = checkpoints.last_good(folder.checkpoints)
        kept = f"the last good checkpoint is {good}" if good else "no checkpoint had been written"
        reason = f"{stopping.diverged}, so the run was stopped; {kept}."
        _say(trainer, status="diverged", reason=reason, **ended)
        return Run(folder.path, "diverged", reason)
    if stopping.signal is not None and step < trainer.updates:
        name = signal.Signals(stopping.signal).name
        reason = f"stopped by {name} after step {step} of {trainer.updates}; go on with --resume."
        _say(trainer, status="stopped", reason=reason, **ended)
        return Run(folder.path, "stopped", reason)
    if not any(line["step"] == step and "eval_loss" in line for line in folder.metrics()):
        trainer.evaluate()
    trainer.save_model(str(folder.unfinished_model))
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        files.move(folder.unfinished_model, folder.model)
    assert trainer.model is not None
    sharded = any(isinstance(p, DTensor) for p in trainer.model.parameters())
    _say(trainer, status="finished", processes=trainer.args.world_size, sharded=sharded, **ended)
    trainer.accelerator.wait_for_everyone()
    return Run(folder.path, "finished", "")


def _callbacks(recipe: Recipe, task: Task, folder: RunFolder, total: int, progress: bool) -> list[TrainerCallback]:
    found: list[TrainerCallback] = []
    if recipe.alpha_warmup:
        rule = rule_of(recipe)
        alpha = rule.alpha if recipe.alpha is None else recipe.alpha
        found.append(AlphaWarmup(alpha, recipe.alpha_hidden, recipe.alpha_warmup))
    if recipe.kappa_scale or recipe.kappa_mean:
        found.append(LocaterCallback(recipe.kappa_scale, recipe.kappa_mean))
    if recipe.diagnose_every != 0:
        batches = task.batches(recipe.diagnose_examples)
        found.append(RunDiagnosis(batches, every(recipe.diagnose_every, total), folder, progress))
    return found


def _clock(recipe: Recipe, task: Task, folder: RunFolder) -> StepTimer:
    good, _ = checkpoints.last_good(folder.checkpoints)
    earlier = [line["seconds"] for line in folder.metrics() if good and line["step"] <= checkpoints.step_of(good)]
    return StepTimer(task.unit, recipe.batch_size * task.units, max(earlier, default=0.0))


def _checkpoint(folder: RunFolder, trainer: RunTrainer, progress: bool) -> Path | None:
    """The checkpoint to go on from, or None; metrics of later steps are removed."""
    trainer.accelerator.wait_for_everyone()
    good, faults = checkpoints.last_good(folder.checkpoints)
    if trainer.is_world_process_zero():
        for sentence in faults:
            print(f"uncollapse train: {sentence}", file=sys.stderr)
        folder.cut_metrics(checkpoints.step_of(good) if good else -1)
        if good and progress:
            print(f"going on from step {checkpoints.step_of(good)}", file=sys.stderr)
    trainer.accelerator.wait_for_everyone()
    return good


@contextlib.contextmanager
def _ready(folder: RunFolder, recipe: Recipe, resume: bool, force: bool) -> Iterator[None]:
    """Lock the folder and check that it can take the recipe; with several processes, in the first one only."""
    if first_process():
        with folder.locked():
            folder.check(recipe, resume, force)
            yield
    else:
        yield


@contextlib.contextmanager
def _tensorboard_in(path: Path) -> Iterator[None]:
    """Have tensorboard, if it is installed, write to `path`, unless the user has set another folder."""
    name = "TENSORBOARD_LOGGING_DIR"  # read by the Trainer's reporter
    given = os.environ.get(name)
    os.environ[name] = given or str(path)
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(name)


def _say(trainer: RunTrainer, **status: Any) -> None:
    if trainer.is_world_process_zero():
        trainer.folder.set_status(**status)


def peak_memory() -> int | None:
    """Peak memory of this process in bytes, of its GPU if it has one; None where the system does not count it."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource  # absent on Windows
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Silence progress bars and warnings of the libraries about their own defaults and files."""
    bars = is_progress_bar_enabled()
    disable_progress_bar()  # type: ignore[no-untyped-call]
    names = ("transformers", "accelerate", "datasets", "huggingface_hub")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if bars:
            enable_progress_bar()  # type: ignore[no-untyped-call]
