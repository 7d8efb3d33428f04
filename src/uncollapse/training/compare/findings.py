"""What a comparison shows, in words: a difference that the spread of seeds explains is called that."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from uncollapse.report.differences import number

from .grouping import Group
from .measures import COLLAPSE, FEWEST, Measure, shown
from .reading import RecordedRun

OTHER_TEST = ("data", "length", "task")  # keys without which two evaluations are not of the same thing


def findings(
    groups: Sequence[Group], final: pd.DataFrame, measures: Sequence[Measure], differences: pd.DataFrame
) -> list[str]:
    """Sentences: the task's first measure, collapse, costs of comparing what differs."""
    sentences = []
    first = next((m for m in measures if (final["measure"] == m.key).any()), None)
    for measure in [*([first] if first else []), *COLLAPSE]:
        rows = final[final["measure"] == measure.key]
        if len(rows):
            sentences += _against_first(measure, rows)
    return [*sentences, *_verdicts(groups), *_cautions(groups, differences)]


def missing_runs(groups: Sequence[Group], measures: Sequence[Measure]) -> list[str]:
    """A sentence for each run that is not in the means, and for each group without a finished run."""
    sentences = []
    for group in groups:
        for run in group.runs:
            if not run.finished:
                sentences.append(f"{run.name} {run.state}; its curves are shown, and it is not in the means.")
            elif run not in group.finished:
                sentences.append(f"{run.name} repeats seed {run.seed} of its group and is not counted again.")
            else:
                lost = [m.words for m in measures if run.final(m.key) is None and _logged(run, m.key)]
                if lost:
                    sentences.append(f"{run.name} ends with {' and '.join(lost)} not finite; the means are without it.")
        if not group.finished:
            sentences.append(f"{group.name} has no finished run, so it has no final numbers.")
    return sentences


def _logged(run: RecordedRun, measure: str) -> bool:
    return bool((run.metrics["measure"] == measure).any())


def _against_first(measure: Measure, rows: pd.DataFrame) -> list[str]:
    """Each other group's difference to the first one, weighed against the spread of seeds."""
    base, *others = rows.to_dict("records")
    words = measure.words[0].upper() + measure.words[1:]
    widest = {"spread": max(_spreads(base, *others), default=math.nan)}  # numbers side by side have like digits
    if not others:
        spread = f" ± {shown(base, base['spread'])} over {base['seeds']} seeds" if base["seeds"] > 1 else ""
        return [f"{words}: {base['group']} {shown(base)}{spread}."]
    if len(others) > 1 and all(_within(base, other) for other in others):
        gap = max(abs(other["mean"] - base["mean"]) for other in others)
        return [
            f"{words}: every group is within the spread of seeds of {base['group']} ({shown(base | widest)}): at most "
            f"{number(gap)} against a spread of {number(max(_spreads(base, *others)))}; no difference shown."
        ]
    return [
        f"{words}: {other['group']} {shown(other | widest)} against {base['group']} {shown(base | widest)}, "
        f"{weigh(measure, base, other)}."
        for other in others
    ]


def _spreads(*rows: Mapping[Hashable, Any]) -> list[float]:
    return [row["spread"] for row in rows if not math.isnan(row["spread"])]


def _within(base: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> bool:
    """Whether the larger spread of two groups explains their difference."""
    return bool(abs(other["mean"] - base["mean"]) <= max(_spreads(base, other), default=-1.0))


def weigh(measure: Measure, base: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> str:
    """What the difference of two groups is worth.

    >>> rows = [{"mean": 1.0, "spread": 0.05, "low": 0.9, "high": 1.1, "seeds": 3} for _ in range(2)]
    >>> weigh(Measure("eval_loss", "loss"), rows[0], rows[1] | {"mean": 1.02})
    'within the spread of seeds: 0.02 against a spread of 0.05; no difference shown'
    """
    gap = other["mean"] - base["mean"]
    size = number(abs(gap))
    if gap == 0:
        return "no difference"
    spreads = _spreads(base, other)
    if not spreads:
        return f"a difference of {size}; one seed each: no spread is known, so it may be chance"
    spread = max(spreads)
    if _within(base, other):
        return f"within the spread of seeds: {size} against a spread of {number(spread)}; no difference shown"
    direction = _direction(measure, gap)
    start = f"{direction} by {size}, more than the spread of seeds ({number(spread)})"
    if len(spreads) == 1:
        return f"{start}, which is known of one side only: the other has one seed"
    if min(base["seeds"], other["seeds"]) < FEWEST:
        return f"{start}; fewer than {FEWEST} seeds, so no interval can be given"
    apart = other["low"] > base["high"] or other["high"] < base["low"]
    return f"{start}; their bootstrap intervals {'do not overlap' if apart else 'overlap, so it is not certain'}"


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


def _cautions(groups: Sequence[Group], differences: pd.DataFrame) -> list[str]:
    """What makes numbers hard to compare."""
    sentences = []
    differing = set(differences["key"])
    other = [key for key in OTHER_TEST if key in differing]
    if other:
        sentences.append(f"The recipes differ in {' and '.join(other)}, so evaluations are not of the same data.")
    steps = {group.name: group.runs[0].recipe.get("steps") for group in groups}
    if len(set(steps.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in steps.items())
        sentences.append(f"The budgets differ (steps: {listed}); final numbers are of different lengths of training.")
    return sentences
