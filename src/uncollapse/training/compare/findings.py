"""Sentences about a comparison of runs: differences with their intervals, collapses, and what limits the comparison."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from uncollapse.report.differences import number
from uncollapse.statistics import CONFIDENCE, FEWEST, Estimate, SeedSummary, differences

from .grouping import Group
from .measures import COLLAPSE, Measure, shown
from .reading import RecordedRun

OTHER_TEST = ("data", "length", "task")  # recipe keys that must agree for evaluations to be comparable


def findings(
    groups: Sequence[Group], final: pd.DataFrame, measures: Sequence[Measure], recipe_differences: pd.DataFrame
) -> list[str]:
    """Sentences about the main measure of the task, about collapse, and about what makes the runs hard to compare."""
    sentences = []
    first = next((m for m in measures if (final["measure"] == m.key).any()), None)
    for measure in [*([first] if first else []), *COLLAPSE]:
        rows = final[final["measure"] == measure.key]
        if len(rows):
            sentences += _against_first(measure, rows)
    return [*sentences, *_verdicts(groups), *_cautions(groups, recipe_differences)]


def missing_runs(groups: Sequence[Group], measures: Sequence[Measure]) -> list[str]:
    """One sentence per run that is left out of the means, and per group without a finished run."""
    sentences = []
    for group in groups:
        for run in group.runs:
            if not run.finished:
                sentences.append(f"{run.name} {run.state}; its curves are shown, but it is not in the means.")
            elif run not in group.finished:
                sentences.append(f"{run.name} repeats seed {run.seed} of its group and is not counted again.")
            else:
                lost = [m.words for m in measures if run.final(m.key) is None and _logged(run, m.key)]
                if lost:
                    sentences.append(
                        f"{run.name} ends with {' and '.join(lost)} not finite; it is left out of those means."
                    )
        if not group.finished:
            sentences.append(f"{group.name} has no finished run, so it has no final numbers.")
    return sentences


def _logged(run: RecordedRun, measure: str) -> bool:
    return bool((run.metrics["measure"] == measure).any())


def _against_first(measure: Measure, rows: pd.DataFrame) -> list[str]:
    """The difference of each other group from the first one, as the seeds allow to say it."""
    base, *others = rows.to_dict("records")
    words = measure.words[0].upper() + measure.words[1:]
    if not others:
        spread = f" ± {shown(base, base['spread'])} over {base['seeds']} seeds" if base["seeds"] >= FEWEST else ""
        return [f"{words}: {base['group']} {shown(base)}{spread}."]
    found = differences(_summary(base), {other["group"]: _summary(other) for other in others})
    spreads = [row["spread"] for row in (base, *others) if row["seeds"] >= FEWEST]
    digits = {"spread": max(spreads, default=math.nan)}  # numbers side by side have the same digits
    if len(others) > 1 and all(gap.verdict == "undecided" and gap.seeds >= FEWEST for gap in found.values()):
        largest = max(abs(gap.value) for gap in found.values())
        detectable = max(gap.detectable for gap in found.values())
        return [
            f"{words}: no group is shown to differ from {base['group']} ({shown(base | digits)}). The largest "
            f"difference is {number(largest)}; a difference of {number(detectable)} would have shown in every group."
        ]
    return [
        f"{words}: {other['group']} {shown(other | digits)} against {base['group']} {shown(base | digits)}, "
        f"{difference_words(measure, found[other['group']], len(others))}."
        for other in others
    ]


def _summary(row: Mapping[Hashable, Any]) -> SeedSummary:
    return SeedSummary(row["mean"], row["spread"], row["seeds"])


def difference_words(measure: Measure, gap: Estimate, compared: int = 1) -> str:
    """What the difference of two groups is, with its interval, and what follows from it.

    `compared` is the number of groups that are compared with the same one, for which Holm's correction was made.

    >>> from uncollapse.statistics import difference, summarise
    >>> pair = summarise([1.0, 1.1, 1.2]), summarise([1.02, 1.12, 1.22])
    >>> difference_words(Measure("eval_loss", "loss", higher=False), difference(*pair))
    'a difference of +0.02 (-0.207 to +0.247 at 95 % confidence): undecided, only 0.23 or more would have shown'
    """
    if gap.seeds < FEWEST:
        return f"a difference of {gap.value:+.3g}; one seed is not enough for a verdict"
    if gap.low == gap.high == 0.0:
        return "the same number with every seed"
    holm = f", with Holm's correction for {compared} groups" if compared > 1 else ""
    size = f"{gap.value:+.3g} ({gap.low:+.3g} to {gap.high:+.3g} at {100 * CONFIDENCE:g} % confidence{holm})"
    if gap.verdict == "undecided":
        return f"a difference of {size}: undecided, only {number(gap.detectable)} or more would have shown"
    return f"a difference of {size}: {_direction(measure, gap.value)}"


def _direction(measure: Measure, gap: float) -> str:
    if measure.higher is None:
        return "higher" if gap > 0 else "lower"
    return "better" if (gap > 0) == measure.higher else "worse"


def _verdicts(groups: Sequence[Group]) -> list[str]:
    """Which groups end in a collapse, by the verdicts of their last diagnoses."""
    sentences = []
    seen = False
    for group in groups:
        diagnosed = [run for run in group.runs if run.last_diagnosis is not None]
        seen = seen or bool(diagnosed)
        kinds: dict[str, int] = {}
        for run in diagnosed:
            assert run.last_diagnosis is not None
            for kind in {verdict.kind for verdict in run.last_diagnosis.verdicts if verdict.is_collapse}:
                kinds[kind] = kinds.get(kind, 0) + 1
        sentences += [
            f"{kind.capitalize()} at the last diagnosis of {count} of {len(diagnosed)} runs of {group.name}."
            for kind, count in kinds.items()
        ]
    return sentences or (["No run ends in a collapse, by its last diagnosis."] if seen else [])


def _cautions(groups: Sequence[Group], recipe_differences: pd.DataFrame) -> list[str]:
    """What makes numbers hard to compare."""
    sentences = []
    differing = set(recipe_differences["key"])
    other = [key for key in OTHER_TEST if key in differing]
    if other:
        sentences.append(f"The recipes differ in {' and '.join(other)}, so their evaluations are not on the same data.")
    steps = {group.name: group.runs[0].recipe.get("steps") for group in groups}
    if len(set(steps.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in steps.items())
        sentences.append(
            f"The budgets differ (steps: {listed}); final numbers are after different lengths of training."
        )
    return sentences
