"""One run: a remedy is put into a trained model, which is trained on; what is kept are its held-out losses."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import AdamW

import uncollapse as uc
from uncollapse.models.convert import settings_of
from uncollapse.models.learned import learned_parameters
from uncollapse.remedies.contents import read
from uncollapse.remedies.remedy import named
from uncollapse.training.callbacks import AlphaWarmup

from ..short_runs.store import RunRecord, definition_of
from ..short_runs.training import BETAS, DECAY, RunCourse, loss_of, step
from ..study import ShortRun
from .hosts import batches_of, held_out_of, loaded
from .plan import PlannedRetrofit, Retrofit


def short_run(planned: PlannedRetrofit) -> ShortRun:
    """The run as a study has it."""
    return ShortRun(planned.name, definition_of(planned), partial(made, planned))


def made(planned: PlannedRetrofit) -> RunRecord:
    """Put the remedy in, train on, and keep losses.

    They are kept as changes of the loss that the model had before: a record has four digits of each number, and these
    changes are small.
    """
    size, model = planned.host.size, loaded(planned.host)
    batches, held_out = batches_of(planned.host, planned.seed), held_out_of(planned.host)
    began, stock = time.perf_counter(), loss_of(model, held_out)
    warmup = put_in(model, planned.retrofit, size.updates, batches[0])
    starts = {name: own.detach().clone() for name, own in learned_parameters(model)}
    groups = uc.parameter_groups(model, lr=planned.rate, weight_decay=DECAY)
    optimizer = AdamW(groups, lr=planned.rate, betas=BETAS, weight_decay=DECAY, fused=True)
    steps, changes, course = [0], [loss_of(model, held_out) - stock], RunCourse()
    for update, ids in enumerate(batches, start=1):
        if warmup is not None:
            warmup.set(model, update - 1)
        step(model, optimizer, ids, course)
        if update % size.every == 0:
            steps.append(update)
            changes.append(loss_of(model, held_out) - stock)
    moves = [float((own.detach() - starts[name]).abs().max()) for name, own in learned_parameters(model)]
    return {
        "host": planned.host.name,
        "retrofit": planned.retrofit.label,
        "seed": planned.seed,
        "rate": planned.rate,
        "seconds": time.perf_counter() - began,
        "stock": stock,
        "steps": steps,
        "changes": changes,  # the first is that of the remedy itself
        "moved": max(moves) if moves else None,  # how far training has moved a parameter of the remedy's own at most
    }


def put_in(model: Any, retrofit: Retrofit, updates: int, ids: Tensor) -> AlphaWarmup | None:
    """Give a model the remedy; a batch is what gains are fitted to. What is left to be warmed up is returned."""
    for name, settings in read(retrofit.remedy) if retrofit.remedy else ():
        uc.apply(model, named(name, **settings), example={"input_ids": ids, "labels": ids})
    if not retrofit.warmup:
        return None
    final = settings_of(model)
    assert final is not None
    warmup = AlphaWarmup(float(final.alpha), float(final.rule.keep), round(retrofit.warmup * updates))
    warmup.set(model, 0)
    return warmup
