"""One short run: AdamW, gradients clipped at 1, watched or not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

import uncollapse as uc
from uncollapse.watching import Watch

from .faults import PlantedFault, batch_of, before_update, planted, rate_of
from .network import RunSize, held_out_batch, small_llama, training_batches

CLIP = 1.0


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
    seconds: float = 0.0

    def updates(self) -> pd.DataFrame:
        """One row an update, as `Watch.updates` has it."""
        steps = range(1, len(self.losses) + 1)
        return pd.DataFrame({"step": steps, "loss": self.losses, "gradient_norm": self.gradient_norms})


def train(run: RunSettings, size: RunSize, *, watched: bool = True) -> RunCourse:
    """Train from the first update to the last; a run whose loss is not finite ends there."""
    began, course = time.perf_counter(), RunCourse()
    model = small_llama(size, run.seed)
    optimizer = AdamW(model.parameters(), lr=run.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    batches, held_out = training_batches(size, run.seed), held_out_batch(size)
    with planted(model, run.fault), _watching(model, optimizer, size, course if watched else None):
        for update, ids in enumerate(batches, start=1):
            before_update(model, run.fault, update)
            for group in optimizer.param_groups:
                group["lr"] = rate_of(run.rate, run.warmup, run.fault, update)
            step(model, optimizer, batch_of(ids, run.fault, update, run.seed), course)
            if not math.isfinite(course.losses[-1]):
                break
            if update % size.every == 0:
                course.held_out.append(loss_of(model, held_out))
    course.seconds = time.perf_counter() - began
    return course


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
