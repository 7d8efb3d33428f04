"""What is done at the first warning, and a run to which it is done; the fault goes on as it would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import AdamW

import uncollapse as uc
from uncollapse.remedies.contents import read
from uncollapse.remedies.remedy import named

from ..short_runs.faults import ROUNDING, PlantedFault, batch_of, rate_of
from ..short_runs.network import RunSize, training_batches
from ..short_runs.training import DECAY, Before, RunCourse, RunSettings, train

LIMIT = 64.0  # of qk_clip: the power of two next above the largest logit of healthy runs; records of runs show it
SIZE = RunSize(held_out=256)  # that of early warning, with a loss that is ten times as exact
REFUSED = {("qk_clip", ROUNDING)}  # it has to see logits, and these are made by an attention function of their own


@dataclass(frozen=True)
class Branch:
    """What is done at the first warning: a factor of the rate from then on, and a remedy as recipes name it."""

    name: str
    rate: float = 1.0
    remedy: str = ""


NOTHING = "nothing"
BRANCHES = (
    Branch(NOTHING),
    Branch("half the rate", rate=0.5),
    Branch("a tenth of the rate", rate=0.1),
    Branch("qk_clip", remedy=f"qk_clip(threshold={LIMIT:g})"),
    Branch("qk_norm", remedy="qk_norm"),
    Branch("fitted qk_norm", remedy="qk_norm(fit=True)"),
)
CONTROL = Branch("a rate 1 % lower", rate=0.99)  # what a change does to a healthy run that should do nothing


def train_treated(run: RunSettings, size: RunSize, branch: Branch, alarm: int, *, watched: bool = False) -> RunCourse:
    """Train from the first update to the last, and treat before the update that follows the alarm."""

    def rates(update: int) -> float:
        usual = rate_of(run.rate, run.warmup, run.fault, update)
        return branch.rate * usual if update > alarm else usual

    return train(run, size, watched=watched, rates=rates, before=giving(run, size, branch, alarm))


def giving(run: RunSettings, size: RunSize, branch: Branch, alarm: int) -> Before:
    """What gives a run the remedy of a branch, from the batch at which the alarm came."""

    def before(update: int, model: Any, optimizer: AdamW) -> None:
        refused = run.fault is not None and (branch.name, run.fault.cause) in REFUSED
        if branch.remedy and not refused and update == alarm + 1:
            ids = batch_of(training_batches(size, run.seed)[alarm - 1], run.fault, alarm, run.seed)
            with readable_scores(model, run.fault):
                give(model, optimizer, branch.remedy, ids, run.rate)

    return before


def give(model: Any, optimizer: AdamW, remedy: str, ids: Tensor, rate: float) -> None:
    """Apply a remedy to a model that is being trained; what it adds is trained too, at the rate of the rest."""
    for name, settings in read(remedy):
        uc.apply(model, named(name, **settings), optimizer=optimizer, example={"input_ids": ids, "labels": ids})
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for group in uc.parameter_groups(model, lr=rate, weight_decay=DECAY):
        new = [parameter for parameter in group["params"] if id(parameter) not in known]
        if new:
            optimizer.add_param_group(group | {"params": new})


@contextmanager
def readable_scores(model: Any, fault: PlantedFault | None) -> Iterator[None]:
    """Let scores be those of torch's own attention, where a remedy can read them; the fault's are out of its sight."""
    update = model.update
    if fault is not None and fault.cause == ROUNDING:
        model.update = 0  # before the onset
    try:
        yield
    finally:
        model.update = update
