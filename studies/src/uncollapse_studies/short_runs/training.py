"""One short run: AdamW, gradients clipped at 1, watched or not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

import uncollapse as uc
from uncollapse.remedies.contents import read
from uncollapse.remedies.remedy import named
from uncollapse.watching import Watch

from .faults import PlantedFault, batch_of, before_update, planted, rate_of
from .network import TEXT, RunSize, held_out_batch, small_llama, training_batches

CLIP, BETAS, DECAY = 1.0, (0.9, 0.95), 0.01
Before = Callable[[int, Any, AdamW], object]  # the update that comes, the model, the optimizer


@dataclass(frozen=True)
class RunSettings:
    """What a run is: its seed, rate and warm-up, and the fault that it has; a healthy twin differs in the fault."""

    seed: int
    rate: float
    warmup: int
    fault: PlantedFault | None = None


@dataclass
class RunCourse:
    """What came of it: losses and gradient norms of all updates, held-out losses and tables of those measured."""

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)  # before they are clipped
    held_out: list[float] = field(default_factory=list)  # after every measured update
    watch: Watch | None = None
    model: Any = None  # as it is at the end
    seconds: float = 0.0

    def updates(self) -> pd.DataFrame:
        """One row an update, as `Watch.updates` has it."""
        steps = range(1, len(self.losses) + 1)
        return pd.DataFrame({"step": steps, "loss": self.losses, "gradient_norm": self.gradient_norms})


def train(
    run: RunSettings,
    size: RunSize,
    *,
    watched: bool = True,
    remedy: str = "",
    text: str = TEXT,
    rates: Callable[[int], float] | None = None,
    before: Before | None = None,
) -> RunCourse:
    """Train from the first update to the last; a run whose loss is not finite ends there.

    Args:
        run: seed, rate, warm-up, fault.
        size: of the network, the batches and the run.
        watched: whether there is a watch on it.
        remedy: what the network has from the start, as in recipes: "qk_norm + soft_cap(cap=30)".
        text: the data.
        rates: the learning rate of each update, counted from 1, where it is not a warm-up to a constant rate.
        before: called before each update with its number, the model and the optimizer.
    """
    began, course = time.perf_counter(), RunCourse()
    model = small_llama(size, run.seed)
    optimizer = optimizer_with(model, run.rate, remedy)
    batches, held_out = training_batches(size, run.seed, text), held_out_batch(size, text)
    rates = rates or partial(rate_of, run.rate, run.warmup, run.fault)
    with planted(model, run.fault), _watching(model, optimizer, size, course if watched else None):
        for update, ids in enumerate(batches, start=1):
            before_update(model, run.fault, update)
            if before is not None:
                before(update, model, optimizer)
            set_rate(optimizer, rates(update), run.rate)
            step(model, optimizer, batch_of(ids, run.fault, update, run.seed), course)
            if not math.isfinite(course.losses[-1]):
                break
            if update % size.every == 0:
                course.held_out.append(loss_of(model, held_out))
    course.model, course.seconds = model, time.perf_counter() - began
    return course


def optimizer_with(model: Any, rate: float, remedy: str = "") -> AdamW:
    """AdamW for a model that gets the remedies: what they add to it is trained too."""
    remedies = [named(name, **settings) for name, settings in read(remedy)] if remedy else []
    for one in remedies:
        if not one.needs_optimizer:
            uc.apply(model, one)
    groups = uc.parameter_groups(model, lr=rate, weight_decay=DECAY) if remedies else model.parameters()
    optimizer = AdamW(groups, lr=rate, betas=BETAS, weight_decay=DECAY, fused=True)
    for one in remedies:
        if one.needs_optimizer:
            uc.apply(model, one, optimizer=optimizer)
    return optimizer


def set_rate(optimizer: AdamW, rate: float, usual: float) -> None:
    """Give every group the rate, times what its own was of the usual one when it came."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.setdefault("share", group["lr"] / usual)


def step(model: Any, optimizer: AdamW, ids: Tensor, course: RunCourse) -> None:
    """One update."""
    model.train()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    norm = clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    course.losses.append(loss.item())
    course.gradient_norms.append(norm.item())


@torch.no_grad()
def loss_of(model: Any, ids: Tensor) -> float:
    """The loss on a batch, without training."""
    model.eval()
    return float(model(input_ids=ids, labels=ids).loss)


@contextmanager
def _watching(model: Any, optimizer: AdamW, size: RunSize, course: RunCourse | None) -> Iterator[None]:
    if course is None:
        yield
        return
    with uc.watch(model, optimizer, every=size.every, on_warning=lambda _: None, detectors=()) as course.watch:
        yield
