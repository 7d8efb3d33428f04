"""RunComparison: runs side by side as tables, sentences and a page."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from uncollapse.diagnosis.comparison import Comparison
from uncollapse.statistics import CONFIDENCE, FEWEST

from .findings import findings, missing_runs
from .grouping import Group, group_runs, recipe_differences, same_tokens
from .measures import COLLAPSE, COSTS, Measure, final_table, final_value, shown, task_measures
from .reading import RecordedRun, read_runs

OTHER_TOKENS = (
    "The runs use different tokenisers: a loss or perplexity is per token, and their tokens are not the same. "
    "They are compared in bits per byte only."
)


@dataclass(frozen=True)
class RunComparison(Comparison):
    """What `uc.compare` returns for runs.

    `final`: one row per measure and group, with mean, spread and interval over the seeds of finished runs; `history`:
    all metrics of all runs; `differences`: the keys in which recipes differ; `runs`: one row per run with its state;
    `findings`: sentences that say what the runs show; `notes`: which runs are not finished, and what cannot be
    compared.
    """

    groups: Sequence[Group]
    measures: Sequence[Measure]
    final: pd.DataFrame
    history: pd.DataFrame
    differences: pd.DataFrame
    runs: pd.DataFrame
    findings: Sequence[str]
    notes: Sequence[str]

    def html(self) -> str:
        from .pages import page_of  # charts are loaded when they are drawn

        return page_of(self)

    def _repr_html_(self) -> str:
        from .pages import notebook_view

        return notebook_view(self)

    def __str__(self) -> str:
        count = len(self.groups)
        lines = [f"{len(self.runs)} runs of {count} recipe{'s' if count > 1 else ''}", ""]
        if len(self.differences):
            lines += [self.differences.to_string(index=False), ""]
        if len(self.final):
            lines += [
                number_table(self, [*self.measures, *COLLAPSE, *COSTS]).to_string(index=False),
                "",
                interval_words(self),
                "",
            ]
        return "\n".join([*lines, *(f"- {sentence}" for sentence in (*self.findings, *self.notes))])

    __repr__ = __str__


def compare_runs(runs: Sequence[str | os.PathLike[str]]) -> RunComparison:
    """Compare runs: what differs between their recipes, what came out, and whether a difference is more than chance.

    Args:
        runs: run folders that `uncollapse train` wrote; a folder that holds `seed-*` runs stands for all of them. Runs
            whose recipes are equal up to the seed form a group; the other groups are compared with the first.
    """
    if isinstance(runs, str | os.PathLike):
        runs = [runs]
    found = read_runs(runs)
    if len(found) < 2:
        raise ValueError(f"there is nothing to compare with: give at least two runs, got {len(found)}.")
    _check_tasks(found)
    groups, together = group_runs(found), same_tokens(found)
    task = found[0].task
    measures = task_measures(task, task != "language" or together)
    notes = missing_runs(groups, measures)
    if task == "language" and not together:
        if all(run.final(measures[0].key) is None for run in found):
            raise ValueError(
                "the runs use different tokenisers and hold no bits per byte, the only number to compare them by."
            )
        notes.insert(0, OTHER_TOKENS)
    differences = recipe_differences(groups)
    final = final_table(groups, [*measures, *COLLAPSE, *COSTS])
    return RunComparison(
        groups=groups,
        measures=measures,
        final=final,
        history=_history(groups),
        differences=differences,
        runs=_run_table(groups),
        findings=findings(groups, final, measures, differences),
        notes=notes,
    )


def number_table(comparison: RunComparison, measures: Sequence[Measure], between: str = " ") -> pd.DataFrame:
    """Final numbers for reading: one row per measure, one column per group; `between` separates mean and interval."""
    names = [group.name for group in comparison.groups]
    rows = comparison.final[comparison.final["measure"].isin([measure.key for measure in measures])]
    cells = {(row["words"], row["group"]): _cell(row, between) for row in rows.to_dict("records")}
    words = list(dict.fromkeys(rows["words"]))
    return pd.DataFrame([[w, *(cells.get((w, n), "none") for n in names)] for w in words], columns=["", *names])


def interval_words(comparison: RunComparison) -> str:
    """What the numbers of the table are, and why an interval may be missing."""
    seeds = comparison.final["seeds"]
    words = "Mean over the seeds of finished runs"
    if (seeds >= FEWEST).any():
        words += f" ± standard deviation [{100 * CONFIDENCE:g} % interval of the mean]"
    if (seeds < FEWEST).any():
        words += "; with one seed there is neither spread nor interval"
    return f"{words}."


def _cell(row: Mapping[Hashable, Any], between: str) -> str:
    text = shown(row)
    if row["spread"] == row["spread"]:
        text += f" ± {shown(row, row['spread'])}"
    if row["low"] == row["low"]:
        text += f"{between}[{shown(row, row['low'])}, {shown(row, row['high'])}]"
    return text


def _check_tasks(runs: Sequence[RecordedRun]) -> None:
    tasks: dict[str, list[str]] = {}
    for run in runs:
        tasks.setdefault(run.task, []).append(run.name)
    if len(tasks) > 1:
        listed = "; ".join(f"{task}: {', '.join(names)}" for task, names in tasks.items())
        raise ValueError(f"the runs have different tasks and cannot be compared ({listed}).")


def _history(groups: Sequence[Group]) -> pd.DataFrame:
    tables = [
        run.metrics.assign(group=group.name, run=run.name, seed=run.seed, finished=run.finished)
        for group in groups
        for run in group.runs
    ]
    columns = ["group", "run", "seed", "finished", "step", "measure", "value"]
    return pd.concat(tables, ignore_index=True)[columns]


def _run_table(groups: Sequence[Group]) -> pd.DataFrame:
    rows = []
    for group in groups:
        for run in group.runs:
            seconds, memory = final_value(run, COSTS[0]), final_value(run, COSTS[-1])
            spent, peak = seconds or float("nan"), memory or float("nan")
            row = (group.name, run.name, run.seed, run.state, run.last_step, spent, peak, run.status.get("parameters"))
            rows.append(row)
    columns = ["group", "run", "seed", "state", "steps", "seconds", "peak_memory_mb", "parameters"]
    return pd.DataFrame(rows, columns=columns)
