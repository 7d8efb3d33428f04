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
from uncollapse.diagnosis.sample import sample_for
from uncollapse.models.convert import transformers_model
from uncollapse.models.reporters import Reporters

from .course import PERSISTENCE, Course

LAYER_METRICS = (
    "residual_ratio",
    "cosine_mean",
    "cosine_aligned",
    "cosine_centred_aligned",
    "entropy_normalised",
    "entropy_min",
    "sink",
    "logit_max",
    "gap_mean",
    "gap_max",
)
HEAD_METRICS = ("entropy_normalised", "gap_mean", "logit_max", "qk_trace", "qk_scale")


class DiagnoseCallback(TrainerCallback):
    """Diagnoses the model on fixed batches every `every` steps, logs the numbers, and warns of a collapse that lasts.

    The numbers are logged where the Trainer reports (`report_to`) and in `state.log_history`. The last `Diagnosis` is
    kept as `report`; with `keep`, all of them are kept in `reports` by step.

    Args:
        batches: held-out batches, as `uc.diagnose` takes them; the same ones each time. None takes the sample that
            comes with the package.
        every: steps between two diagnoses.
        warn: warn when a collapse has lasted, when the model has recovered from it, and when it is back.
        keep: keep every report, for a page over the course of training.
        persistence: measurements in a row that make a collapse, and its recovery, worth telling; NaN is told at once.

    >>> import torch, uncollapse as uc
    >>> callback = uc.DiagnoseCallback({"input_ids": torch.randint(16, (2, 8))}, every=100)
    """

    def __init__(
        self,
        batches: Batch | Iterable[Batch] | None = None,
        every: int = 500,
        warn: bool = True,
        *,
        keep: bool = False,
        persistence: int = PERSISTENCE,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}.")
        if batches is not None:  # a generator would be empty at the second diagnosis
            batches = [batches] if isinstance(batches, Mapping) else list(batches)
        self.batches: list[Batch] | None = batches
        self.every, self.warn, self.keep = every, warn, keep
        self.report: Diagnosis | None = None
        self.reports: dict[int, Diagnosis] = {}
        self.course = Course(persistence)
        self._sample = ""  # the name of what was chosen where no batches were given
        self._reporters = Reporters()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Diagnose every `every` steps."""
        if state.global_step % self.every == 0:
            self.measure(kwargs["model"], args, state, control)

    def measure(
        self, model: nn.Module, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> Diagnosis:
        """Diagnose now, log the numbers, and tell what has lasted, gone or come back."""
        began = time.perf_counter()
        if self.batches is None:  # chosen once: what a model writes itself changes as it learns
            sample = sample_for(transformers_model(model))
            self.batches, self._sample = sample.batches, sample.name
        self.report = diagnose(model, self.batches, progress=False)
        self.report.info["sample"] = self._sample or self.report.info["sample"]
        if self.keep:
            self.reports[state.global_step] = self.report
        if state.is_world_process_zero:
            metrics = scalars(self.report) | {"diagnose/seconds": round(time.perf_counter() - began, 3)}
            state.log_history.append({"step": state.global_step, **metrics})
            self._reporters.log(metrics, args, state, control, model)
            if args.get_warmup_steps(state.max_steps) > 0:
                self.report.info["settings"]["warmup"] = args.get_warmup_steps(state.max_steps)
            for sentence in self.course.news(state.global_step, self.report.verdicts):
                if self.warn:
                    self.show_warning(sentence)
        return self.report

    @property
    def first_seen(self) -> dict[str, int]:
        """Kinds of collapse that lasted, and the step at which each was first measured."""
        return self.course.first_seen

    def show_warning(self, message: str) -> None:
        """Show what has happened: a Python warning, unless a subclass does something else."""
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
