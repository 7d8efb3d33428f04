"""What is measured: healthy models, harmless changes and planted faults, each with its diagnosis."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import torch

from uncollapse.data.text import DATA_VARIABLE
from uncollapse.diagnosis import Diagnosis, diagnose

from ..trained_models import TRAINED
from .architectures import ARCHITECTURES, Inputs, batch, build
from .faults import FAULTS, GRADED, HARMLESS, Plant, planted

PARTS = ("seen", "held out")  # thresholds are chosen on the first
SEEDS = 2  # draws of random weights; faults are planted in the first
AS_IT_IS = "as it is"


@dataclass(frozen=True)
class Case:
    """A model with what was done to it, and its diagnosis; `fault` is the verdict that must name it, if any."""

    model: str
    weights: str  # "random 0", "random 1", "trained", or "own run" of a model that we trained
    part: str
    case: str
    fault: str
    report: Diagnosis
    strength: float | None = None
    counted: bool = True  # a weak fault shows where a verdict begins, and cannot be missed
    again: Diagnosis | None = None  # of other sequences

    @property
    def about(self) -> dict[str, object]:
        """Its columns in the table of all cases."""
        names = ("model", "weights", "part", "case", "strength", "fault", "counted")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Subject:
    """A model that faults are planted in: how to build it afresh, and inputs by seed."""

    name: str
    weights: str
    part: str
    fresh: Callable[[], Any]
    inputs: Callable[[int], Inputs]

    def diagnosed(self, plant: Plant, seed: int = 0) -> Diagnosis:
        """The report on a fresh model with what is planted, without the tables that no verdict needs."""
        report: Diagnosis = planted(
            self.fresh(), plant, lambda model: diagnose(model, self.inputs(seed), progress=False)
        )
        unused = pd.DataFrame()
        return replace(report, propagation=unused, eigenvalues=unused, histograms={"cosine": unused, "entropy": unused})

    def cases(self) -> Iterator[Case]:
        """The harmless changes, and in all but the second draw of weights the faults."""
        case = partial(Case, self.name, self.weights, self.part)
        for name, plant in HARMLESS.items():
            yield case(name, "", self.diagnosed(plant), again=self.diagnosed(plant, seed=1))
        if self.weights == "random 1":
            return
        for name, fault in FAULTS.items():
            again = self.diagnosed(fault.plant, seed=1)
            yield case(name, fault.named, self.diagnosed(fault.plant), again=again)
        for name, series in GRADED.items():
            for strength in series.strengths:
                plant, counted = series.plant(strength), strength in series.counted
                second = self.diagnosed(plant, seed=1) if counted else None
                yield case(name, series.named, self.diagnosed(plant), strength, counted, second)


def subjects() -> Iterator[Subject]:
    """Every architecture with random weights, every second one held out, and the trained models where they lie."""
    for number, name in enumerate(ARCHITECTURES):
        for seed in range(SEEDS):
            fresh, drawn = partial(build, name, seed), partial(batch, name, 4)
            yield Subject(name, f"random {seed}", PARTS[number % 2], fresh, drawn)
    for name, load in TRAINED.items() if os.environ.get(DATA_VARIABLE) else ():
        model, inputs = load()
        yield Subject(name, "trained", PARTS[0], partial(copy.deepcopy, model), partial(_half, inputs))


def _half(inputs: Inputs, seed: int) -> Inputs:
    """Half of the sequences, another one for each seed."""
    rows = len(next(iter(inputs.values())))
    chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[: max(2, rows // 2)]
    return {key: value[chosen] for key, value in inputs.items()}


def measured(progress: Callable[[str], object] = print) -> Iterator[Case]:
    """Every case of every subject."""
    for subject in subjects():
        progress(f"{subject.name}, {subject.weights}")
        yield from subject.cases()
