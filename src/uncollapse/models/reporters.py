"""How a callback logs numbers where its Trainer does: TensorBoard, Weights & Biases and the like."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import get_reporting_integration_callbacks


class Reporters:
    """Reporters of the kinds that the Trainer uses (`report_to`); a callback has no access to the Trainer's own."""

    def __init__(self) -> None:
        self._started: list[TrainerCallback] | None = None

    def log(
        self,
        numbers: Mapping[str, float | str],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
    ) -> None:
        """Log numbers and texts at the current step; reporters start at the first call."""
        if self._started is None:
            kinds = get_reporting_integration_callbacks(args.report_to)  # type: ignore[no-untyped-call]
            self._started = [kind() for kind in kinds]
            for reporter in self._started:
                reporter.on_train_begin(args, state, control, model=model)
        for reporter in self._started:
            reporter.on_log(args, state, control, logs=dict(numbers), model=model)
