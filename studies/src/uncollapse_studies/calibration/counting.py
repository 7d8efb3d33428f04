"""False and missed alarms of the verdicts, counted over architectures and trained models."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from uncollapse.data.text import DATA_VARIABLE
from uncollapse.diagnosis import Diagnosis, diagnose

from ..trained_models import TRAINED
from .architectures import ARCHITECTURES, Inputs, batch, build
from .faults import FAULTS, HARMLESS, planted

SEEDS = 2  # draws of random weights; faults are planted in the first
KINDS = ("not finite", "dead network", "dead attention", "rank collapse", "entropy collapse")
COLUMNS = {
    "heads": ("gap_mean", "gap_max", "entropy_normalised", "sink_strongest"),
    "layers": ("cosine_aligned", "residual_frobenius"),
}
SHARES = (0.01, 0.05, 0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Subject:
    """A model that faults are planted in: how to build it afresh, and inputs by seed."""

    name: str
    weights: str
    fresh: Callable[[], Any]
    inputs: Callable[[int], Inputs]

    def diagnosed(self, plant: Callable[[Any], list[Any]], seed: int = 0) -> Diagnosis:
        """The report on a fresh model with what is planted."""
        report: Diagnosis = planted(
            self.fresh(), plant, lambda model: diagnose(model, self.inputs(seed), progress=False)
        )
        return report


def subjects() -> Iterator[Subject]:
    """Every architecture with random weights, and the trained models where they lie."""
    for name in ARCHITECTURES:
        for seed in range(SEEDS):
            yield Subject(name, f"random {seed}", partial(build, name, seed), partial(batch, name, 4))
    for name, load in TRAINED.items() if os.environ.get(DATA_VARIABLE) else ():
        model, inputs = load()
        yield Subject(name, "trained", partial(copy.deepcopy, model), partial(_half, inputs))


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
        about = {"model": subject.name, "weights": subject.weights}
        for case, plant in HARMLESS.items():
            report = subject.diagnosed(plant)
            rows.append({**about, "case": case, "fault": "", **_found(report)})
            if case == "as it is":
                rows[-1]["agrees"] = _signature(report) == _signature(subject.diagnosed(plant, seed=1))
                healthy += [report] if subject.weights == "trained" else []
        for case, fault in FAULTS.items() if subject.weights != "random 1" else ():
            found = _found(subject.diagnosed(fault.plant))
            named = any(found[kind] for kind in fault.found_by)
            rows.append({**about, "case": case, "fault": fault.found_by[0], **found, "named": named})
    return pd.DataFrame(rows), _quantiles(healthy)


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
    """By verdict: planted faults and how many were missed, healthy models and how many were called so."""
    healthy = rows[rows["fault"] == ""]
    lines = []
    for kind in KINDS:
        of_kind = rows[rows["fault"] == kind]
        lines.append(
            {
                "verdict": kind,
                "planted": len(of_kind),
                "missed": int((~of_kind["named"].astype(bool)).sum()),
                "healthy": len(healthy),
                "false": int(healthy[kind].sum()),
            }
        )
    return pd.DataFrame(lines)


def markdown(rows: pd.DataFrame) -> str:
    """The table in docs/diagnose.md."""
    table = summary(rows)
    lines = ["| verdict | planted faults | missed | healthy models | false alarms |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {r.verdict} | {r.planted} | {r.missed} | {r.healthy} | {r.false} |" for r in table.itertuples()]
    whole = rows[rows["case"] == "as it is"]
    agree = whole["agrees"].astype(bool)
    architectures = rows.loc[rows["weights"] != "trained", "model"].nunique()
    trained = rows.loc[rows["weights"] == "trained", "model"].nunique()
    lines += [
        "",
        f"{architectures} architectures of transformers with random weights, {SEEDS} draws each, and {trained} trained "
        f"models; {len(FAULTS)} kinds of planted faults; {len(HARMLESS)} harmless changes. On a second sample of "
        f"sequences the verdict on {agree.sum()} of the {len(agree)} models as they are is the same.",
    ]
    return "\n".join(lines)


def write(folder: Path, rows: pd.DataFrame, quantiles: dict[str, dict[str, float]]) -> None:
    """The counts, and what is usual."""
    rows.to_csv(folder / "cases.csv", index=False)
    summary(rows).to_csv(folder / "summary.csv", index=False)
    about = {"about": "quantiles over the heads and layers of healthy trained models", "quantiles": quantiles}
    (folder / "usual.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(rows) + "\n", encoding="utf-8")
