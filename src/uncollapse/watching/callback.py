"""DiagnoseCallback: watch collapse develop while any Hugging Face Trainer trains."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from uncollapse.diagnosis.model_pass import Batch, diagnose
from uncollapse.diagnosis.result import Diagnosis
from uncollapse.diagnosis.verdicts import Verdict
from uncollapse.models.reporters import Reporters

LAYER_METRICS = (
    "residual_ratio",
    "cosine_mean",
    "cosine_aligned",
    "cosine_centred_aligned",
    "entropy_normalised",
    "entropy_min",
    "sink",
    "logit_max",
)
HEAD_METRICS = ("entropy_normalised", "logit_max", "qk_trace", "qk_scale")


class DiagnoseCallback(TrainerCallback):
    """Diagnoses the model on fixed batches every `every` steps, logs the numbers, and warns when a collapse appears.

    The numbers are logged where the Trainer reports (`report_to`) and in `state.log_history`. The last `Diagnosis` is
    kept as `report`; with `keep`, all of them are kept in `reports` by step.

    Args:
        batches: held-out batches, as `uc.diagnose` takes them; the same ones each time. None takes the sample that
            comes with the package.
        every: steps between two diagnoses.
        warn: warn once when a kind of collapse first appears.
        keep: keep every report, for a page over the course of training.

    >>> import torch, uncollapse as uc
    >>> callback = uc.DiagnoseCallback({"input_ids": torch.randint(16, (2, 8))}, every=100)
    """

    def __init__(
        self, batches: Batch | Iterable[Batch] | None = None, every: int = 500, warn: bool = True, *, keep: bool = False
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}.")
        if batches is not None:  # a generator would be empty at the second diagnosis
            batches = [batches] if isinstance(batches, Mapping) else list(batches)
        self.batches: list[Batch] | None = batches
        self.every, self.warn, self.keep = every, warn, keep
        self.report: Diagnosis | None = None
        self.reports: dict[int, Diagnosis] = {}
        self.first_seen: dict[str, int] = {}  # kind of collapse -> step
        self._reporters = Reporters()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Diagnose every `every` steps."""
        if state.global_step % self.every == 0:
            self.measure(kwargs["model"], args, state, control)

    def measure(
        self, model: nn.Module, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> Diagnosis:
        """Diagnose now, log the numbers, and warn if a collapse has appeared."""
        began = time.perf_counter()
        self.report = diagnose(model, self.batches, progress=False)
        if self.keep:
            self.reports[state.global_step] = self.report
        if state.is_world_process_zero:
            metrics = scalars(self.report) | {"diagnose/seconds": round(time.perf_counter() - began, 3)}
            state.log_history.append({"step": state.global_step, **metrics})
            self._reporters.log(metrics, args, state, control, model)
            self._warn_of_new(self.report.verdicts, state.global_step)
        return self.report

    def _warn_of_new(self, verdicts: Iterable[Verdict], step: int) -> None:
        for verdict in verdicts:
            if verdict.is_collapse and verdict.kind not in self.first_seen:
                self.first_seen[verdict.kind] = step
                if self.warn:
                    self.show_warning(f"step {step}: {verdict}")

    def show_warning(self, message: str) -> None:
        """Show that a collapse has appeared: a Python warning, unless a subclass does something else."""
        warnings.warn(message, stacklevel=2)


def scalars(report: Diagnosis) -> dict[str, float]:
    """The numbers of a report by the names under which they are logged."""
    numbers: dict[str, float] = {}
    for row in report.layers.to_dict("records"):
        for name in LAYER_METRICS:
            if name in row:
                numbers[f"diagnose/layer_{row['layer']:02.0f}/{name}"] = float(row[name])
    for row in report.heads.to_dict("records"):
        for name in HEAD_METRICS:
            if name in row:
                numbers[f"diagnose/layer_{row['layer']:02.0f}_head_{row['head']:02.0f}/{name}"] = float(row[name])
    return numbers
