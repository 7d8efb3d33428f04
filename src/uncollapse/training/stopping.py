"""Early stops: a signal ends the run after its step with a checkpoint, a diverged loss ends it at once."""

from __future__ import annotations

import math
import signal
import threading
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

PATIENCE = 10  # steps in a row
FACTOR = 2.0  # times the loss of a uniform guess
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]  # no SIGHUP on Windows


class StopConditions(TrainerCallback):
    """Stops after a step if a signal arrived, or if the loss is not finite or stays far above that of guessing.

    All processes decide together, so that none saves a checkpoint while another continues.
    """

    def __init__(self, guessing: float) -> None:
        self.guessing = guessing
        self.trainer: Any = None  # set after the trainer is built
        self.signal: int | None = None
        self.diverged: str | None = None
        self._high = 0
        self._earlier: dict[int, Any] = {}

    def install(self) -> None:
        """Handle the signals that ask a process to end."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            ignored = signal.getsignal(number) is signal.SIG_IGN
            if not (ignored and number.name == "SIGHUP"):  # by nohup, and then it is to be ignored
                self._earlier[number] = signal.signal(number, self._on_signal)

    def release(self) -> None:
        """Restore the earlier signal handlers."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:  # the second Ctrl-C stops at once
            raise KeyboardInterrupt
        self.signal = number

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Reset the loss of the step."""
        self.trainer.step_loss = torch.zeros(())

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Combine loss and signal of all processes, then decide."""
        loss, received = self._combined(float(self.trainer.step_loss), self.signal or 0)
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
        elif received:
            self.signal = received
            control.should_training_stop, control.should_save, control.should_log = True, True, True
            control.should_evaluate = False

    def _combined(self, loss: float, received: int) -> tuple[float, int]:
        """Mean loss and largest signal number over all processes."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return loss, received
        processes = torch.distributed.get_world_size()
        mean = torch.tensor(loss / processes, device=self.trainer.args.device)
        torch.distributed.all_reduce(mean)
        number = torch.tensor(received, device=self.trainer.args.device)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
        return float(mean), int(number)
