"""What is kept of a finished run: final numbers, short curves, and the tables that violins and maps draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from uncollapse.diagnosis import Diagnosis
from uncollapse.report.rho_map import binned
from uncollapse.training.run_folder import RunFolder

LATE, CHANGE = 0.8, 0.01  # see trend()
EVALUATED = {"eval_loss": "eval_loss", "eval_perplexity": "perplexity", "eval_accuracy": "accuracy"}
PERCENT = ("eval_accuracy",)
LAYER_COLUMNS = ("layer", "cosine_mode", "cosine_median", "cosine_mean", "cosine_aligned", "residual_ratio")
DIGITS = 6


@dataclass(frozen=True)
class CellMeasurements:
    """Numbers by name, curves by name (lists of equal length, `step` or `eval_step` among them), tables."""

    numbers: dict[str, float]
    curves: dict[str, list[float]]
    tables: dict[str, pd.DataFrame]
    epochs: float
    trend: str


def trend(steps: Sequence[int], losses: Sequence[float]) -> str:
    """Whether the held-out loss was still falling at the end: falling, flat, rising or unknown.

    The last evaluation is compared with the latest one at or before 80 % of the updates: a change of less than 1 % is
    flat. A rate that decays to 0 flattens a curve too, so flat does not mean that longer training would not help.

    >>> trend([0, 50, 80, 100], [9.0, 5.0, 4.0, 3.9]), trend([80, 100], [4.0, 3.99]), trend([100], [4.0])
    ('falling', 'flat', 'unknown')
    """
    earlier = [loss for step, loss in zip(steps, losses, strict=True) if step <= LATE * steps[-1]] if steps else []
    if not earlier or not math.isfinite(losses[-1]):
        return "unknown"
    change = (losses[-1] - earlier[-1]) / abs(earlier[-1])
    return "flat" if abs(change) < CHANGE else "falling" if change < 0 else "rising"


def throughout(record: Mapping[str, Any], curve: str) -> float | None:
    """The mean of a curve of a cell over training; None if it has none.

    >>> throughout({"curves": {"entropy_mean": [1.0, None, 2.0]}}, "entropy_mean")
    1.5
    """
    values = [value for value in record.get("curves", {}).get(curve, ()) if value is not None]
    return math.fsum(values) / len(values) if values else None


def measure(path: Path) -> CellMeasurements:
    """Read a run folder."""
    folder = RunFolder(path)
    lines = folder.metrics()
    evaluations = [line for line in lines if line.get("eval_loss") is not None]
    curves = _evaluation_curves(evaluations)
    numbers = {name: values[-1] for name, values in curves.items() if name != "eval_step"}
    if evaluations and evaluations[-1].get("eval_bits_per_byte") is not None:
        numbers["bits_per_byte"] = float(evaluations[-1]["eval_bits_per_byte"])
    losses = [line["loss"] for line in lines if line.get("loss") is not None]
    if losses:
        numbers["training_loss"] = float(losses[-1])
    diagnoses = {
        int(found.name.removeprefix("step-")): Diagnosis.load(found)
        for found in sorted(folder.diagnosis.glob("step-*"))
    }
    tables: dict[str, pd.DataFrame] = {}
    if diagnoses:
        summaries = [_summary(report) for report in diagnoses.values()]
        curves["step"] = [float(step) for step in diagnoses]
        curves |= {name: [summary.get(name, math.nan) for summary in summaries] for name in summaries[-1]}
        numbers |= summaries[-1]
        tables = _tables(diagnoses)
    return CellMeasurements(
        numbers={name: round_to(value) for name, value in numbers.items() if math.isfinite(value)},
        curves={name: [None if not math.isfinite(v) else round_to(v) for v in vs] for name, vs in curves.items()},  # type: ignore[misc]
        tables=tables,
        epochs=round(max((float(line["epoch"]) for line in lines if line.get("epoch") is not None), default=0.0), 2),
        trend=trend([line["step"] for line in evaluations], [line["eval_loss"] for line in evaluations]),
    )


def round_to(value: float, digits: int = DIGITS) -> float:
    """Six digits: a file of results is read and compared by people."""
    return float(f"{value:.{digits}g}")


def _evaluation_curves(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    if not evaluations:
        return {}
    curves = {"eval_step": [float(line["step"]) for line in evaluations]}
    for name, ours in EVALUATED.items():
        if all(line.get(name) is not None for line in evaluations):
            scale = 100.0 if name in PERCENT else 1.0
            curves[ours] = [scale * float(line[name]) for line in evaluations]
    return curves


def _summary(report: Diagnosis) -> dict[str, float]:
    """A diagnosis in a few numbers: means of layers or heads, extremes of heads, the last layer's residual ratio."""
    layers, heads = report.layers, report.heads
    means = {name: layers[name] for name in ("cosine_mean", "cosine_aligned", "cosine_centred") if name in layers}
    for name in ("entropy_mean", "entropy_normalised", "qk_trace", "qk_scale", "localisation", "propagation_mean"):
        if name in heads:
            means[name] = heads[name]
    found = {name: float(column.mean()) for name, column in means.items()}
    extremes = {"largest_logit": ("logit_max", "max"), "lowest_entropy": ("entropy_normalised", "min")}
    found |= {name: float(heads[column].agg(how)) for name, (column, how) in extremes.items() if column in heads}
    return found | {"residual_ratio": float(layers["residual_ratio"].iloc[-1])}


def _tables(diagnoses: Mapping[int, Diagnosis]) -> dict[str, pd.DataFrame]:
    last = list(diagnoses.values())[-1]
    layers = last.layers[[name for name in LAYER_COLUMNS if name in last.layers]]
    tables = {"layers": layers, "cosine": last.histograms["cosine"], "entropy": last.histograms["entropy"]}
    rho = [report.propagation.assign(step=step) for step, report in diagnoses.items() if len(report.propagation)]
    if rho:
        tables["rho"] = binned(pd.concat(rho, ignore_index=True), ["step"])
    if "alpha_hidden" in last.heads:
        learned = last.heads[["layer", "head", "alpha_hidden"]]
        tables["learned"] = learned.merge(last.layers[["layer", "alpha"]], on="layer")
    return {name: table for name, table in tables.items() if len(table)}
