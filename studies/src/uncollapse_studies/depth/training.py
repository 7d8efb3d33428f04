"""One run: a network, its remedy and optimizer, and held-out loss and accuracy on the way."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer

import uncollapse as uc
from uncollapse.remedies.contents import read
from uncollapse.remedies.remedy import named

from ..short_runs.store import RunRecord
from ..short_runs.training import CLIP, optimizer_with, set_rate
from .network import Images, NetSize, batches, guess_of, images_of, start_as_identity, vit
from .plan import ADAMW, STOCK, VALUES, DepthRun

AT_ONCE = 500  # held-out images in a forward


def train(run: DepthRun, size: NetSize) -> RunRecord:
    """Train from the first update to the last and keep what is measured; a loss that is not finite ends the run."""
    began = time.perf_counter()
    trained, held_out = images_of("train", size.images), images_of("valid", size.held_out)
    model = vit(size, run.layers, run.seed, residual=run.residual, norms=run.norms)
    if run.start != STOCK:
        start_as_identity(model, values=run.start == VALUES)
    optimizer = optimizer_of(model, run)
    steps: list[int] = []
    losses: list[float] = []
    accuracies: list[float] = []
    update = 0
    for update, chosen in enumerate(batches(size, run.updates, run.seed), start=1):
        if isinstance(optimizer, AdamW):
            set_rate(optimizer, run.rate * min(1.0, update / run.warmup), run.rate)
        loss = step(model, optimizer, Images(trained.pixels[chosen], trained.labels[chosen]))
        if not math.isfinite(loss):
            break
        if update % size.every == 0 or update == run.updates:
            measured = measure(model, held_out)
            steps.append(update)
            losses.append(measured[0])
            accuracies.append(measured[1])
    return {
        **asdict(run),
        "guess": asdict(guess_of(trained.labels, held_out.labels)),
        "steps": steps,
        "loss": losses,
        "accuracy": accuracies,
        "ended": update,
        "seconds": time.perf_counter() - began,
    }


def optimizer_of(model: Any, run: DepthRun) -> Optimizer:
    """The optimizer of a model that gets the run's remedy: AdamW, or SGD without momentum and decay."""
    return optimizer_with(model, run.rate, run.remedy) if run.optimizer == ADAMW else _sgd(model, run)


def _sgd(model: Any, run: DepthRun) -> Optimizer:
    remedies = [named(name, **settings) for name, settings in read(run.remedy)] if run.remedy else []
    for one in remedies:
        if not one.needs_optimizer:
            uc.apply(model, one)
    optimizer = SGD(uc.parameter_groups(model, lr=run.rate), lr=run.rate)
    for one in remedies:
        if one.needs_optimizer:
            uc.apply(model, one, optimizer=optimizer)
    return optimizer


def step(model: Any, optimizer: Optimizer, batch: Images) -> float:
    """One update; gradients are clipped under AdamW only, which is what plain SGD means."""
    model.train()
    loss = cross_entropy(model(pixel_values=batch.pixels).logits, batch.labels)
    loss.backward()  # type: ignore[no-untyped-call]
    if isinstance(optimizer, AdamW):
        clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@torch.no_grad()
def measure(model: Any, held_out: Images) -> tuple[float, float]:
    """Loss and accuracy on held-out images."""
    model.eval()
    parts = [model(pixel_values=pixels).logits for pixels in torch.split(held_out.pixels, AT_ONCE)]
    logits = torch.cat(parts)
    right = (logits.argmax(-1) == held_out.labels).double().mean()
    return float(cross_entropy(logits, held_out.labels)), float(right)
