"""The trained models, each made once in a process, and the text that they are trained on with."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ..short_runs.faults import rate_of
from ..short_runs.network import RunSize, held_out_batch, small_llama, training_batches
from ..short_runs.training import RunCourse, RunSettings, optimizer_with, set_rate, step
from ..trained_models import stories
from .plan import HostModel

WRITING_SEED, BEGIN = 0, 1  # what it is sampled with, and the token that a text of stories260K begins with


def loaded(host: HostModel) -> Any:
    """The trained model, a copy of its own."""
    if host.teaching is None:
        return deepcopy(_stories())
    return deepcopy(_taught(host.teaching, replace(host.size, updates=host.taught)))


def batches_of(host: HostModel, seed: int) -> Tensor:
    """The batches of a run, (updates, batch, length): their order, and of the usual text their choice, by the seed."""
    size, wanted = host.size, host.size.updates * host.size.batch
    if host.teaching is not None:
        return training_batches(size, host.teaching.seed + 1 + seed)  # others than those that it was taught
    texts, generator = own_text(size.length, host.texts + size.held_out), torch.Generator().manual_seed(seed)
    order: list[int] = []
    while len(order) < wanted:
        order += (size.held_out + torch.randperm(host.texts, generator=generator)).tolist()
    return texts[order[:wanted]].view(size.updates, size.batch, size.length)


def held_out_of(host: HostModel) -> Tensor:
    """The same sequences in every run."""
    if host.teaching is not None:
        return held_out_batch(host.size)
    return own_text(host.size.length, host.texts + host.size.held_out)[: host.size.held_out]


@cache
def own_text(length: int, count: int) -> Tensor:
    """What stories260K writes from the begin token on, at temperature 1 over all tokens: (count, length)."""
    start = torch.full((count, 1), BEGIN)
    whole = {"attention_mask": torch.ones_like(start), "pad_token_id": 0}  # said only to keep transformers quiet
    write = partial(_stories().generate, start, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **whole)
    with torch.random.fork_rng():
        torch.manual_seed(WRITING_SEED)
        ids: Tensor = write(max_new_tokens=length - 1, min_new_tokens=length - 1)
    return ids


@cache
def _stories() -> Any:
    return stories()[0]


@cache
def _taught(run: RunSettings, size: RunSize) -> Any:
    """A small LLaMA, trained from its first update to its last."""
    model, course = small_llama(size, run.seed), RunCourse()
    optimizer = optimizer_with(model, run.rate)
    for update, ids in enumerate(training_batches(size, run.seed), start=1):
        set_rate(optimizer, rate_of(run.rate, run.warmup, None, update), run.rate)
        step(model, optimizer, ids, course)
    return model
