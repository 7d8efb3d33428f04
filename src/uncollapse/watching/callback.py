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
from uncollapse.models.reporters import Reporters

from . import logs
from .course import PERSISTENCE, Course, News
from .detectors import DETECTORS
from .front import Watch, watch
from .summary_scalars import VERDICT, summary_scalars, verdict_text


class DiagnoseCallback(TrainerCallback):
    """`uc.watch` in a Trainer: measures every `every` steps, logs the numbers, and warns of a collapse that lasts.

    With batches the first diagnosis is of step 0, before any update. The numbers are logged where the Trainer reports
    (`report_to`) and in `state.log_history`. The last `Diagnosis` is kept as `report`; with `keep`, all of them are
    kept in `reports` by step.

    Args:
        batches: held-out batches, as `uc.diagnose` takes them, on which the model is diagnosed: the same ones each
            time, in passes of their own. None measures the training batches in the forward that trains the model; the
            tables and warnings that look ahead are then those of `watch`.
        every: steps between two measurements.
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
        self.watch: Watch | None = None
        self.report: Diagnosis | None = None
        self.reports: dict[int, Diagnosis] = {}
        self.course = Course(persistence)
        self._reporters = Reporters()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """With batches: the model before the first update, with which others are compared. Without: watch."""
        if self.batches is not None and state.global_step == 0:
            self.measure(kwargs["model"], args, state, control)
        if self.batches is None:
            self.close()
            others = [name for name in DETECTORS if name != "thresholds"]  # those are told by the course
            self.watch = watch(
                kwargs["model"],
                kwargs.get("optimizer"),
                every=self.every,
                on_warning=self._tell,
                detectors=others,
            )
            self.watch.schedule.done = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure every `every` steps."""
        if state.global_step % self.every == 0:
            self.measure(kwargs["model"], args, state, control)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Leave the model as it was found."""
        self.close()

    def close(self) -> None:
        """End the watch, if there is one; its tables stay."""
        if self.watch is not None:
            self.watch.close()

    def measure(
        self, model: nn.Module, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> Diagnosis | None:
        """Diagnose now, or take what the watch has measured; log it, and tell what has lasted, gone or come back."""
        began = time.perf_counter()
        if self.batches is None:
            self.report = None if self.watch is None else self.watch.diagnosis
        else:
            self.report = diagnose(model, self.batches, progress=False)
        if self.report is None:
            return None
        if self.keep:
            self.reports[state.global_step] = self.report
        if state.is_world_process_zero:
            metrics = scalars(self.report) | summary_scalars(self.report)
            metrics |= {"diagnose/seconds": round(time.perf_counter() - began, 3)}
            state.log_history.append({"step": state.global_step, **metrics})
            self._reporters.log(metrics | {VERDICT: verdict_text(self.report)}, args, state, control, model)
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

    def _tell(self, news: News) -> None:
        if self.warn:
            self.show_warning(news.sentence)

    def show_warning(self, message: str) -> None:
        """Show what has happened: a Python warning, unless a subclass does something else."""
        warnings.warn(message, stacklevel=2)


def scalars(report: Diagnosis) -> dict[str, float]:
    """The numbers of a report by the names under which they are logged."""
    return logs.scalars({"layers": report.layers, "heads": report.heads}, "diagnose")
