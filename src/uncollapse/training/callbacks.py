"""Callbacks of a training run: metrics file, progress, diagnosis, warm-up of alpha."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from uncollapse.diagnosis import Diagnosis
from uncollapse.models import set_alpha
from uncollapse.watching import DiagnoseCallback

from .run_folder import RunFolder
from .saving import naming_failure
from .tasks import TrainingBatch


class StepTimer(TrainerCallback):
    """Time spent in training steps, summed over the parts of a run, and the speed since the last call of `speed`."""

    def __init__(self, unit: str, units_per_step: int, earlier: float = 0.0) -> None:
        self.unit, self.units_per_step, self.seconds = unit, units_per_step, earlier
        self._since_speed, self._steps, self._began = 0.0, 0, 0.0

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop the clock; runs before the callbacks that evaluate or diagnose."""
        took = time.perf_counter() - self._began
        self.seconds += took
        self._since_speed += took
        self._steps += 1

    def speed(self) -> dict[str, float]:
        """Tokens or images per second since the last call."""
        if not self._steps:
            return {}
        rate = self._steps * self.units_per_step / max(self._since_speed, 1e-9)
        self._since_speed, self._steps = 0.0, 0
        return {f"{self.unit}_per_second": round(rate, 1)}


class MetricsFile(TrainerCallback):
    """Writes every new entry of the Trainer's log history to `metrics.jsonl`, with time and speed."""

    def __init__(self, folder: RunFolder, clock: StepTimer) -> None:
        self.folder, self.clock = folder, clock
        self._written = 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Log whenever a checkpoint is saved: it does not hold the loss since the last line."""
        if control.should_save:
            control.should_log = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the new entries."""
        self.flush(state)

    def flush(self, state: TrainerState) -> None:
        """Write the new entries, on the first process only."""
        new = [entry for entry in state.log_history[self._written :] if "seconds" not in entry]  # not of a checkpoint
        self._written = len(state.log_history)
        if not (state.is_world_process_zero and new):
            return
        for entry in new:  # changed in place: checkpoints hold the log history, from which the file can be restored
            if "loss" in entry:
                entry.update(self.clock.speed())
            entry.setdefault("epoch", state.epoch)
            entry["seconds"] = round(self.clock.seconds, 3)
        with naming_failure(f"metrics of step {state.global_step}"):
            self.folder.append_metrics(new)


class Progress(TrainerCallback):
    """A progress bar on a terminal; elsewhere one line per evaluation."""

    SHOWN = (
        "loss",
        "perplexity",
        "eval_perplexity",
        "eval_bits_per_byte",
        "eval_accuracy",
        "tokens_per_second",
        "images_per_second",
    )

    def __init__(self, title: str, shown: bool = True) -> None:
        self.title, self.shown = title, shown
        self._bar: tqdm[Any] | None = None
        self._numbers: dict[str, str] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Open the progress bar."""
        if self.shown and state.is_world_process_zero and sys.stderr.isatty():
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.title, unit="step")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Advance it."""
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Show the numbers."""
        if not (self.shown and state.is_world_process_zero):
            return
        last = state.log_history[-1]  # to which the metrics file has added the speed
        found = {name: f"{last[name]:,.4g}" for name in self.SHOWN if isinstance(last.get(name), float)}
        self._numbers.update(found)
        if self._bar is not None:
            self._bar.set_postfix(self._numbers)
        elif any(name.startswith("eval_") for name in found):
            said = ", ".join(f"{name} {value}" for name, value in found.items())
            print(f"{self.title}: step {state.global_step} of {state.max_steps}, {said}", flush=True)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Close it."""
        if self._bar is not None:
            self._bar.close()


OnStep = Callable[[int, float | None], object]  # the step, and the training loss last logged


class StepCallback(TrainerCallback):
    """Reports every update to a callback, for example to a progress bar over several runs."""

    def __init__(self, report: OnStep) -> None:
        self.report = report

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report the step and the last loss."""
        losses = (entry["loss"] for entry in reversed(state.log_history) if "loss" in entry)
        self.report(state.global_step, next(losses, None))


class RunDiagnosis(DiagnoseCallback):
    """Diagnoses at the start, every `every` steps and at the end, and saves each diagnosis in the run folder."""

    def __init__(self, batches: list[TrainingBatch], every: int, folder: RunFolder, shown: bool = True) -> None:
        super().__init__(batches, every=every, warn=shown)
        self.folder = folder

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kw: Any) -> None:
        """Diagnose every `every` steps and at the end."""
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            self.measure(kw["model"], args, state, control)

    def measure(
        self, model: nn.Module, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> Diagnosis:
        """Diagnose, and save the report."""
        report = super().measure(model, args, state, control)
        assert report is not None  # it has batches of its own
        path = self.folder.diagnosis / f"step-{state.global_step:06d}"
        if state.is_world_process_zero and not Path(path).exists():
            with naming_failure(f"diagnosis of step {state.global_step}"):
                report.save(path)
        return report

    def show_warning(self, message: str) -> None:
        """Print it above the progress bar."""
        tqdm.write(message, file=sys.stderr)


class AlphaWarmup(TrainerCallback):
    """Raises alpha and alpha_hidden from 0 to their values, so that a stock checkpoint can be trained on."""

    def __init__(self, alpha: float, alpha_hidden: float, steps: int) -> None:
        self.alpha, self.alpha_hidden, self.steps = alpha, alpha_hidden, steps

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kw: Any) -> None:
        """Depends on the step alone, so that a resumed run has the same values."""
        self.set(kw["model"], state.global_step)

    def set(self, model: nn.Module, updates: int) -> None:
        """Set the values of the update that follows `updates` others."""
        share = min(1.0, updates / self.steps)
        set_alpha(model, share * self.alpha, share * self.alpha_hidden)
