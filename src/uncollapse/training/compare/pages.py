"""The page of a comparison of runs: its tables in the form that the charts of `report` take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from uncollapse.diagnosis import Diagnosis
from uncollapse.diagnosis.pages import content_of
from uncollapse.report.content import DiagnosisContent
from uncollapse.report.final_strip import FinalValues
from uncollapse.report.rho_map import binned
from uncollapse.report.runs_page import RunsContent, runs_page, summary_html
from uncollapse.report.training_curves import MEAN, TrainingCurve

from .grouping import Group
from .measures import COLLAPSE, COSTS, LOSSES, TRAINING, final_value, layer_history
from .reading import RecordedRun
from .result import interval_words, number_table

if TYPE_CHECKING:
    from .result import RunComparison

MOST_STEPS = 200  # of a curve; more cannot be seen
MOST_MAPS = 40  # diagnoses of a run in the map of propagation
LAYER_TITLES = {
    "residual_ratio": ("Residual ratio", (0.0, 1.0)),
    "cosine_mean": ("Mean cosine of tokens", None),
    "entropy_normalised": ("Entropy, normalised", (0.0, 1.0)),
}
PENALTY_TITLES = {
    "locater/trace": "tr W, mean of heads",
    "locater/scale": "tr W'W, mean of heads",
    "locater/penalty": "Penalty, sum of heads",
}


def page_of(comparison: RunComparison) -> str:
    """The HTML."""
    from uncollapse import __version__

    footer = f"Made by uncollapse {__version__}. This file needs no network and can be attached as it is."
    return runs_page(content_of_runs(comparison), footer)


def notebook_view(comparison: RunComparison) -> str:
    """What a notebook shows."""
    return summary_html(content_of_runs(comparison, charts=False))


def content_of_runs(comparison: RunComparison, charts: bool = True) -> RunsContent:
    """A comparison as `report/` takes it."""
    groups = comparison.groups
    runs = comparison.runs.rename(columns={"peak_memory_mb": "peak memory, MB"}).astype({"seed": str})
    return RunsContent(
        names=[group.name for group in groups],
        about=[_about(group) for group in groups],
        findings=comparison.findings,
        notes=comparison.notes,
        differences=comparison.differences,
        numbers=number_table(comparison, [*comparison.measures, *COLLAPSE], between="\n"),
        costs=number_table(comparison, COSTS, between="\n"),
        numbers_caption=interval_words(comparison) if len(comparison.final) else "",
        runs=runs.round({"seconds": 1, "peak memory, MB": 0}),
        final=_finals(comparison) if charts else {},
        curves=_curves(comparison) if charts else {},
        layers=_layer_curves(groups) if charts else {},
        penalty=_penalty_curves(groups) if charts else {},
        diagnoses=_last_diagnoses(groups) if charts else (),
        rho=_propagation(groups) if charts else {},
    )


def _about(group: Group) -> str:
    count, done = len(group.runs), len(group.finished)
    seeds = ", ".join(str(run.seed) for run in group.runs)
    parts = [f"{count} run{'s' if count > 1 else ''} (seed{'s' if count > 1 else ''} {seeds})"]
    if done < count:
        parts.append(f"{done} finished")
    parameters = group.runs[0].status.get("parameters")
    if parameters:
        parts.append(f"{parameters:,} parameters")
    return ", ".join(parts)


def _finals(comparison: RunComparison) -> dict[str, FinalValues]:
    """The measures whose final numbers are drawn; losses that are the same in other units are left out."""
    kept = [m for m in comparison.measures if m not in (TRAINING, *LOSSES)] or list(comparison.measures[:1])
    numbers = {group.name: n for n, group in enumerate(comparison.groups, start=1)}
    finals = {}
    for measure in [*kept, *COLLAPSE]:
        means = comparison.final[comparison.final["measure"] == measure.key]
        seeds = [
            (numbers[group.name], run.name, final_value(run, measure))
            for group in comparison.groups
            for run in group.finished
        ]
        table = pd.DataFrame(seeds, columns=["report", "run", "value"]).dropna()
        if len(table):
            report = means["group"].map(numbers)
            title = measure.words[0].upper() + measure.words[1:]
            means = means.assign(report=report)[["report", "mean", "low", "high"]]
            finals[_id(f"final_{measure.key}")] = FinalValues(title, table, means)
    return finals


def _curves(comparison: RunComparison) -> dict[str, TrainingCurve]:
    curves = {}
    for measure in comparison.measures:
        table = curve([[_of(run, measure.key) for run in group.runs] for group in comparison.groups], comparison.groups)
        title = measure.words[0].upper() + measure.words[1:]
        curves[_id(measure.key)] = TrainingCurve(title, table, logarithmic="perplexity" in measure.key)
    return curves


def _penalty_curves(groups: Sequence[Group]) -> dict[str, TrainingCurve]:
    tables = {key: curve([[_of(run, key) for run in group.runs] for group in groups], groups) for key in PENALTY_TITLES}
    return {_id(key): TrainingCurve(PENALTY_TITLES[key], table) for key, table in tables.items()}


def _layer_curves(groups: Sequence[Group]) -> dict[str, TrainingCurve]:
    curves = {}
    histories = [[layer_history(run) for run in group.runs] for group in groups]
    for key, (title, ends) in LAYER_TITLES.items():
        tables = [[h[h["measure"] == key][["step", "layer", "value"]] for h in row] for row in histories]
        curves[_id(key)] = TrainingCurve(title, curve(tables, groups), ends=ends)
    return curves


def _of(run: RecordedRun, key: str) -> pd.DataFrame:
    return run.metrics.loc[run.metrics["measure"] == key, ["step", "value"]]


def curve(tables: Sequence[Sequence[pd.DataFrame]], groups: Sequence[Group]) -> pd.DataFrame:
    """Mean and spread over the finished runs of each group, and each unfinished run on its own."""
    parts = []
    for number, (group, found) in enumerate(zip(groups, tables, strict=True), start=1):
        by = [column for column in ("layer", "step") if found and column in found[0]]
        done = [t for t, run in zip(found, group.runs, strict=True) if run in group.finished and len(t)]
        if done:
            pooled = pd.concat(done).groupby(by)["value"].agg(["mean", "std"]).reset_index()
            low, high = pooled["mean"] - pooled["std"], pooled["mean"] + pooled["std"]
            parts.append(pooled[by].assign(report=number, run=MEAN, value=pooled["mean"], low=low, high=high))
        for table, run in zip(found, group.runs, strict=True):
            if not run.finished and len(table):
                nothing = float("nan")
                parts.append(table.assign(report=number, run=run.name, low=nothing, high=nothing))
    return pd.concat([_thinned(part) for part in parts], ignore_index=True) if parts else pd.DataFrame()


def _thinned(table: pd.DataFrame) -> pd.DataFrame:
    """At most MOST_STEPS steps, the last among them."""
    steps = sorted(table["step"].unique(), reverse=True)
    return table[table["step"].isin(steps[:: -(-len(steps) // MOST_STEPS)])]


def _last_diagnoses(groups: Sequence[Group]) -> list[DiagnosisContent]:
    """The last diagnosis of one run per group, of a finished one if there is one."""
    contents = []
    for group in groups:
        run = next((r for r in (*group.finished, *group.runs) if r.last_diagnosis is not None), None)
        if run is not None and run.last_diagnosis is not None:
            state = "" if run.finished else f", step {list(run.diagnoses)[-1]}, unfinished"
            several = f" (seed {run.seed}{state})" if len(group.runs) > 1 or state else ""
            contents.append(content_of(run.last_diagnosis, f"{group.name}{several}"))
    return contents


def _propagation(groups: Sequence[Group]) -> Mapping[str, pd.DataFrame]:
    """Rho by step, layer, head and position: the mean over the finished runs of a group, or over all if none is."""
    maps = {}
    for group in groups:
        parts = [
            Diagnosis.load(folder).propagation.assign(step=step)
            for run in group.finished or group.runs
            for step, folder in list(run.diagnoses.items())[:: -(-len(run.diagnoses) // MOST_MAPS) or 1]
        ]
        table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        if len(table):
            maps[group.name] = binned(table, ["step", "layer", "head"])
    return maps


def _id(key: str) -> str:
    return f"curve-{key.replace('_', '-').replace('/', '-')}"
