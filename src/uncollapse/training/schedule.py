"""The learning rate over training: linear warm-up, decay, and a cool-down at the lowest rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Decay = Literal["cosine", "linear", "constant"]


@dataclass(frozen=True)
class RateSchedule:
    """The learning rate as a function of the update.

    It rises linearly from `start` to `peak` over `warmup` updates and decays to `floor`, which it reaches `cooldown`
    updates before the end and keeps from there on, also past the end. A "constant" schedule stays at `peak` after the
    warm-up.

    Args:
        peak: the highest rate.
        steps: number of updates, including warm-up and cool-down.
        warmup: updates of the warm-up.
        cooldown: updates at the floor.
        floor: the lowest rate after the peak.
        start: the rate of update 0 if there is a warm-up.
        decay: "cosine", "linear" or "constant".

    >>> schedule = RateSchedule(peak=1.0, steps=8, warmup=2, cooldown=2, floor=0.0, start=0.0)
    >>> [round(schedule.rate(step), 3) for step in range(10)]
    [0.0, 0.5, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0, 0.0, 0.0]
    """

    peak: float
    steps: int
    warmup: int = 0
    cooldown: int = 0
    floor: float = 1e-6
    start: float = 1e-6
    decay: Decay = "cosine"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}.")
        if self.decay not in get_args(Decay):
            raise ValueError(f"decay must be one of {', '.join(get_args(Decay))}, got {self.decay!r}.")
        if self.warmup < 0 or self.cooldown < 0 or self.warmup + self.cooldown > self.steps:
            raise ValueError(
                f"warmup ({self.warmup}) and cooldown ({self.cooldown}) must not be negative or together exceed the "
                f"{self.steps} steps."
            )
        if not 0.0 <= self.floor <= self.peak or not 0.0 <= self.start <= self.peak or self.peak <= 0.0:
            raise ValueError(
                f"peak must be positive and at least floor and start; got {self.peak}, {self.floor} and {self.start}."
            )

    def rate(self, step: int) -> float:
        """The learning rate of update `step`, counted from 0."""
        if step < self.warmup:
            return self.start + (self.peak - self.start) * step / self.warmup
        if self.decay == "constant":
            return self.peak
        updates = self.steps - self.warmup - self.cooldown  # of the decay
        done = 1.0 if step >= self.warmup + updates else (step - self.warmup) / updates
        left = (1.0 + math.cos(math.pi * done)) / 2.0 if self.decay == "cosine" else 1.0 - done
        return self.floor + (self.peak - self.floor) * left

    def scheduler(self, optimizer: Optimizer) -> LambdaLR:
        """A torch scheduler to be stepped after each update; the optimizer's initial rate must be `peak`.

        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> RateSchedule(peak=0.1, steps=10, warmup=5).scheduler(optimizer).get_last_lr()
        [1e-06]
        """
        # LambdaLR saves the attributes of a callable object in checkpoints. A partial has none, so that the settings of
        # a resumed run are not overwritten.
        return LambdaLR(optimizer, partial(_factor, schedule=self))


def _factor(step: int, schedule: RateSchedule) -> float:
    return schedule.rate(step) / schedule.peak
