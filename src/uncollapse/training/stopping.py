"""When a run ends early: a signal finishes the step and saves, a loss that is lost stops at once."""

from __future__ import annotations

import math
import signal
import threading
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

PATIENCE = 10  # steps in a row
FACTOR = 2.0  # times the loss of guessing


class StopConditions(TrainerCallback):
    """Looks after each step for a signal, a loss that is not finite, or one far above that of guessing.

    All processes look together, so that none saves while another goes on.
    """

    def __init__(self, guessing: float) -> None:
        self.guessing = guessing
        self.trainer: Any = None  # set once it is built
        self.signal: int | None = None
        self.diverged: str | None = None
        self._high = 0
        self._earlier: dict[int, Any] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take over Ctrl-C and SIGTERM."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._earlier[number] = signal.signal(number, self._noted)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Give them back."""
        self.release()

    def release(self) -> None:
        """Give the signals back."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier = {}

    def _noted(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:  # asked twice: at once
            raise KeyboardInterrupt
        self.signal = number

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Loss of this step alone."""
        self.trainer.step_loss = torch.zeros(())

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Agree, then decide."""
        loss, asked = self._agreed(float(self.trainer.step_loss), self.signal or 0)
        self._high = self._high + 1 if loss > FACTOR * self.guessing else 0
        if not math.isfinite(loss):
            self.diverged = f"the loss was {loss} at step {state.global_step}"
        elif self._high >= PATIENCE:
            self.diverged = (
                f"the loss was {loss:.4g} at step {state.global_step}, and for {PATIENCE} steps more than "
                f"{FACTOR:g} times the {self.guessing:.4g} of guessing"
            )
        if self.diverged:
            control.should_training_stop, control.should_save, control.should_evaluate = True, False, False
            control.should_log = True
        elif asked:
            self.signal = asked
            control.should_training_stop, control.should_save, control.should_log = True, True, True
            control.should_evaluate = False

    def _agreed(self, loss: float, asked: int) -> tuple[float, int]:
        """The mean loss of the processes, and the largest signal number."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return loss, asked
        processes = torch.distributed.get_world_size()
        mean = torch.tensor(loss / processes, device=self.trainer.args.device)
        torch.distributed.all_reduce(mean)
        number = torch.tensor(asked, device=self.trainer.args.device)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
        return float(mean), int(number)
