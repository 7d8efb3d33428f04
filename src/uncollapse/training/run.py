"""train(): from a recipe to a run folder with metrics, checkpoints, diagnoses and the trained model."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, TrainerCallback, set_seed
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from uncollapse import __version__, files
from uncollapse.remedies import LocaterCallback, from_pretrained

from . import checkpoints
from .callbacks import AlphaWarmup, MetricsFile, OnStep, Progress, RunDiagnosis, StepCallback, StepTimer
from .model import rule_of
from .processes import (
    SharedError,
    check_agreement,
    first_process,
    in_all_processes,
    join_after_restart,
    process_count,
    shared,
)
from .recipe import Recipe, resolve
from .resuming import find_checkpoint, is_finished, resume_metrics
from .run_folder import RunFolder
from .saving import is_lost_process, naming_failure
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
        """The trained model; raises if its files are not those that the run wrote."""
        folder = RunFolder(self.folder)
        reason = folder.damage()
        if reason is not None:
            raise ValueError(f"{reason}; write it again from the last checkpoint with train --resume.")
        return from_pretrained(folder.model)

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
    resolved = resolve(recipe, **keys).for_processes(process_count())
    folder = RunFolder(Path(out) if out is not None else Path("runs") / resolved.name)
    check_agreement({"out": str(folder.path.absolute()), "resume": resume, "force": force, **asdict(resolved)})
    with (
        _quiet_libraries(),
        _tensorboard_in(folder.path / "tensorboard"),
        _ready(folder, resolved, resume, force) as finished,
    ):
        if finished:
            return Run(folder.path, "finished", "")
        return _train(resolved, folder, resume, progress, on_step)


def train_seeds(recipe: Recipe, out: Path, seeds: int, **how: Any) -> list[Run]:
    """Train the same recipe with seeds 0, 1, ..., each in its own folder `seed-N`."""
    return [train(recipe, out / f"seed-{seed}", seed=seed, **how) for seed in range(seeds)]


def _train(recipe: Recipe, folder: RunFolder, resume: bool, progress: bool, on_step: OnStep | None) -> Run:
    join_after_restart()
    set_seed(recipe.seed)
    task = in_all_processes(lambda: task_of(recipe))
    model = task.build()
    checkpoint = find_checkpoint(folder, task, resume)
    history = [] if checkpoint is None else checkpoints.history(checkpoint)
    stopping = StopConditions(task.guessing)
    earlier = max((entry.get("seconds", 0.0) for entry in history), default=0.0)
    clock = StepTimer(task.unit, recipe.batch_size * task.units, earlier)
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
    if first_process():  # now that nothing in the recipe can be wrong any more
        with naming_failure("recipe"):
            folder.begin(recipe, resume)
        with naming_failure("metrics"):
            resume_metrics(folder, checkpoint, history, progress)
    set_seed(recipe.seed + trainer.args.process_index)  # processes draw different dropout
    step = checkpoints.step_of(checkpoint) if checkpoint else 0
    with _status_kept(trainer, stopping):
        _set_status(trainer, status="running", step=step, **_about(trainer))
        if checkpoint is not None and step >= trainer.updates:
            trainer.load_finished(checkpoint)
        else:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return _finish(trainer, stopping, clock)


def _about(trainer: RunTrainer) -> dict[str, Any]:
    """What `status.json` says of a run apart from how far it is."""
    assert trainer.model is not None
    return {
        "steps": trainer.updates,
        "reason": "",
        **trainer.task.fingerprints,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "versions": {
            "uncollapse": __version__,
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
        },
    }


@contextlib.contextmanager
def _status_kept(trainer: RunTrainer, stopping: StopConditions) -> Iterator[None]:
    """Handle signals, and have the status say so if the run ends by an error."""
    stopping.install()
    try:
        yield
    except BaseException as error:
        if is_lost_process(error):
            sentence = "another process of the run ended or cannot be reached; go on with --resume."
            _set_failed(trainer, sentence)
            raise ConnectionError(sentence) from error
        _set_failed(trainer, " ".join(str(error).split()) or type(error).__name__)
        raise
    finally:
        stopping.release()


def _finish(trainer: RunTrainer, stopping: StopConditions, clock: StepTimer) -> Run:
    """Evaluate and save the model, or record why the run ended early."""
    step, folder = trainer.state.global_step, trainer.folder
    ended = {"step": step, "seconds": round(clock.seconds, 3), "peak_memory_bytes": peak_memory()}
    if stopping.diverged:
        good, _ = checkpoints.last_good(folder.checkpoints)
        kept = f"the last good checkpoint is {good}" if good else "no checkpoint had been written"
        reason = f"{stopping.diverged}, so the run was stopped; {kept}."
        _set_status(trainer, status="diverged", reason=reason, **ended)
        return Run(folder.path, "diverged", reason)
    if stopping.signal is not None and step < trainer.updates:
        name = signal.Signals(stopping.signal).name
        reason = f"stopped by {name} after step {step} of {trainer.updates}; go on with --resume."
        _set_status(trainer, status="stopped", reason=reason, **ended)
        return Run(folder.path, "stopped", reason)
    if not any(entry["step"] == step and "eval_loss" in entry for entry in trainer.state.log_history):
        trainer.evaluate()
    with naming_failure("trained model"):
        trainer.save_model(str(folder.unfinished_model))
        trainer.accelerator.wait_for_everyone()
        if trainer.is_world_process_zero():
            files.seal(folder.unfinished_model, step=step)
            files.move(folder.unfinished_model, folder.model)
    assert trainer.model is not None
    sharded = any(isinstance(p, DTensor) for p in trainer.model.parameters())
    if trainer.is_world_process_zero():
        with naming_failure("status"):
            folder.finish(processes=trainer.args.world_size, sharded=sharded, **ended)
    trainer.accelerator.wait_for_everyone()
    return Run(folder.path, "finished", "")


def _callbacks(recipe: Recipe, task: Task, folder: RunFolder, total: int, progress: bool) -> list[TrainerCallback]:
    found: list[TrainerCallback] = []
    if recipe.alpha_warmup:
        rule = rule_of(recipe)
        alpha = rule.alpha if recipe.alpha is None else recipe.alpha
        found.append(AlphaWarmup(alpha, recipe.alpha_hidden, recipe.alpha_warmup))
    if recipe.kappa_scale or recipe.kappa_mean:
        found.append(LocaterCallback(recipe.kappa_scale, recipe.kappa_mean, recipe.normalisation))
    if recipe.diagnose_every != 0:
        batches = task.batches(recipe.diagnose_examples)
        found.append(RunDiagnosis(batches, every(recipe.diagnose_every, total), folder, progress))
    return found


@contextlib.contextmanager
def _ready(folder: RunFolder, recipe: Recipe, resume: bool, force: bool) -> Iterator[bool]:
    """Lock the folder and check that it can take the recipe: the first process does, and all raise if it cannot.

    Yields whether the run is there already, finished.
    """
    with contextlib.ExitStack() as stack:
        problem, finished = None, False
        if first_process():
            try:
                stack.enter_context(folder.locked())
                folder.check(recipe, resume, force)
                finished = resume and is_finished(folder, recipe)
            except (ValueError, OSError) as error:
                problem = str(error)
        problem, finished = shared([problem, finished])
        if problem is not None:
            raise SharedError(problem)
        yield finished


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


def _set_status(trainer: RunTrainer, **status: Any) -> None:
    if trainer.is_world_process_zero():
        with naming_failure("status"):
            trainer.folder.set_status(**status)


def _set_failed(trainer: RunTrainer, reason: str) -> None:
    """Record an error; if there is no room for that, no status is left rather than a wrong one."""
    try:
        _set_status(trainer, status="failed", reason=reason, step=trainer.state.global_step)
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            trainer.folder.status_file.unlink()


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
