"""False and missed alarms of the verdicts, counted over architectures and trained models, seen and held out."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch

from uncollapse.data.text import DATA_VARIABLE
from uncollapse.diagnosis import Diagnosis, diagnose

from ..trained_models import TRAINED
from .architectures import ARCHITECTURES, Inputs, batch, build
from .faults import FAULTS, GRADED, HARMLESS, Plant, planted
from .margins import PARTS, numbers

SEEDS = 2  # draws of random weights; faults are planted in the first
KINDS = ("not finite", "dead network", "dead attention", "rank collapse", "entropy collapse")
COLUMNS = {
    "heads": ("gap_mean", "gap_max", "entropy_normalised", "sink", "sink_strongest"),
    "layers": ("cosine_aligned", "cosine_centred_aligned", "cosine_mean", "residual_ratio", "residual_frobenius"),
}
SHARES = (0.01, 0.05, 0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Subject:
    """A model that faults are planted in: how to build it afresh, and inputs by seed."""

    name: str
    weights: str
    part: str  # "seen" when thresholds and faults were made, or "held out"
    fresh: Callable[[], Any]
    inputs: Callable[[int], Inputs]

    def diagnosed(self, plant: Plant, seed: int = 0) -> Diagnosis:
        """The report on a fresh model with what is planted."""
        report: Diagnosis = planted(
            self.fresh(), plant, lambda model: diagnose(model, self.inputs(seed), progress=False)
        )
        return report


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


def count(progress: Callable[[str], object] = print) -> tuple[pd.DataFrame, dict[str, dict[str, float]]]:
    """One row a model and case, with what was found; and the quantiles of the trained healthy models."""
    rows, healthy = [], []
    for subject in subjects():
        progress(f"{subject.name}, {subject.weights}")
        about = {"model": subject.name, "weights": subject.weights, "part": subject.part, "counted": True}
        for case, plant in HARMLESS.items():
            report = subject.diagnosed(plant)
            rows.append({**about, "case": case, "fault": "", **_found(report), **numbers(report)})
            if case == "as it is":
                rows[-1]["agrees"] = _signature(report) == _signature(subject.diagnosed(plant, seed=1))
                healthy += [report] if subject.weights == "trained" else []
        for case, strength, kind, plant in _faults() if subject.weights != "random 1" else ():
            report = subject.diagnosed(plant)
            found = _found(report) | numbers(report)
            gross = case not in GRADED or strength == GRADED[case].strengths[-1]
            planted = {"case": case, "strength": strength, "fault": kind, "counted": gross, "named": found[kind]}
            rows.append({**about, **planted, **found})
    return pd.DataFrame(rows), _quantiles(healthy)


def _faults() -> Iterator[tuple[str, float | None, str, Plant]]:
    for case, fault in FAULTS.items():
        yield case, None, fault.named, fault.plant
    for case, series in GRADED.items():
        for strength in series.strengths:
            yield case, strength, series.named, series.plant(strength)


def _found(report: Diagnosis) -> dict[str, bool]:
    kinds = {verdict.kind for verdict in report.verdicts}
    return {kind: kind in kinds for kind in KINDS}


def _signature(report: Diagnosis) -> tuple[object, ...]:
    return tuple((verdict.kind, verdict.layers) for verdict in report.verdicts if verdict.is_collapse)


def _quantiles(reports: list[Diagnosis]) -> dict[str, dict[str, float]]:
    quantiles: dict[str, dict[str, float]] = {}
    for table, columns in COLUMNS.items():
        for column in columns if reports else ():
            values = pd.concat([getattr(report, table)[column] for report in reports]).dropna()
            quantiles[column] = {str(share): round(float(values.quantile(share)), 4) for share in SHARES}
    return quantiles


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """By verdict and part: gross faults and how many were missed, healthy models and how many were called so."""
    lines = []
    for kind in KINDS:
        for part in PARTS:
            some = rows[rows["counted"] & (rows["part"] == part)]
            healthy, of_kind = some[some["fault"] == ""], some[some["fault"] == kind]
            missed, false = int((~of_kind["named"].astype(bool)).sum()), int(healthy[kind].sum())
            counts = {"planted": len(of_kind), "missed": missed, "healthy": len(healthy), "false": false}
            lines.append({"verdict": kind, "part": part, **counts})
    return pd.DataFrame(lines)
