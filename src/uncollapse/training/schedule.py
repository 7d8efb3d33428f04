"""The learning rate over training: linear warm-up, a decay, a cool-down at the floor, and never up again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

ScheduleShape = Literal["cosine", "linear", "constant"]


def rate_at(
    step: int,
    *,
    peak: float,
    steps: int,
    warmup: int = 0,
    cooldown: int = 0,
    floor: float = 1e-6,
    start: float = 1e-6,
    shape: ScheduleShape = "cosine",
) -> float:
    """The learning rate of update `step` (from 0) out of `steps`.

    From `start` to `peak` over `warmup` updates, then by `shape` down to `floor`, which is reached where the last
    `cooldown` updates begin and kept from there on, also past the end. "constant" stays at `peak` after the warm-up.

    Args:
        step: the update, from 0.
        peak: the highest rate.
        steps: all updates, warm-up and cool-down included.
        warmup: updates of the warm-up.
        cooldown: updates at the floor.
        floor: the lowest rate after the peak.
        start: the rate of update 0 if there is a warm-up.
        shape: "cosine", "linear" or "constant".

    >>> [round(rate_at(step, peak=1.0, steps=8, warmup=2, cooldown=2, floor=0.0, start=0.0), 3) for step in range(10)]
    [0.0, 0.5, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0, 0.0, 0.0]
    """
    if step < warmup:
        return start + (peak - start) * step / warmup
    if shape == "constant":
        return peak
    decay = steps - warmup - cooldown
    share = 1.0 if step >= warmup + decay else (step - warmup) / decay
    left = (1.0 + math.cos(math.pi * share)) / 2.0 if shape == "cosine" else 1.0 - share
    return floor + (peak - floor) * left


def learning_rate_schedule(
    optimizer: Optimizer,
    *,
    peak: float,
    steps: int,
    warmup: int = 0,
    cooldown: int = 0,
    floor: float = 1e-6,
    start: float = 1e-6,
    shape: ScheduleShape = "cosine",
) -> LambdaLR:
    """`rate_at` as one torch scheduler, stepped once an update; the optimizer's own rate must be `peak`.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    >>> schedule = learning_rate_schedule(optimizer, peak=0.1, steps=10, warmup=5)
    >>> schedule.get_last_lr()
    [1e-06]
    """
    _check(peak, steps, warmup, cooldown, floor, start, shape)
    settings = {"steps": steps, "warmup": warmup, "cooldown": cooldown, "floor": floor, "start": start, "shape": shape}
    # A partial has no state, so that a checkpoint's scheduler state cannot change the settings of this run.
    return LambdaLR(optimizer, partial(_share_of_peak, peak=peak, settings=settings))


def _share_of_peak(step: int, peak: float, settings: Mapping[str, Any]) -> float:
    return rate_at(step, peak=peak, **settings) / peak


def _check(peak: float, steps: int, warmup: int, cooldown: int, floor: float, start: float, shape: str) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}.")
    if shape not in get_args(ScheduleShape):
        raise ValueError(f"the schedule must be one of {', '.join(get_args(ScheduleShape))}, got {shape!r}.")
    if warmup < 0 or cooldown < 0 or warmup + cooldown > steps:
        raise ValueError(
            f"warm-up ({warmup}) and cool-down ({cooldown}) must not be negative or together exceed the {steps} steps."
        )
    if not 0.0 <= floor <= peak or not 0.0 <= start <= peak or peak <= 0.0:
        raise ValueError(f"the rate must be positive and at least floor and start; got {peak}, {floor} and {start}.")
