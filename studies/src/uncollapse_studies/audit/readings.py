"""Statements that depend on how the paper is read: one reading that stands as claimed is enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from uncollapse.statistics import FEWEST, differences, summarise

from ..trained import smallest_that_counts
from .cells import CellSetting, Number, gather, named, values
from .claim import CONDITION, HOLDS, NOT_REPRODUCED, PENDING, SCALE, AuditRun, ClaimVerdict, Evidence
from .deciding import Answer, Question, SettingFinding, decide
from .plan import LAPTOP, budget, plan
from .weighing import Criterion, counts_from, seed_rule


def compare_methods(
    run: AuditRun, artefact: str, number: Number, methods: Sequence[str], against: str, criterion: Criterion
) -> Evidence:
    """Whether one of `methods` at least stands to `against` as claimed, each of them at its own learning rate.

    The rate is sought with seed 0 alone, and further seeds are planned at the best one. Cells of the budget that is
    planned decide where there are any; of others, the rate with most seeds is the best one. Holm's correction is over
    `methods`. One of them without two finished seeds leaves it open whether it is as claimed.
    """
    found = gather(run.cells, [artefact], {name: {} for name in (against, *methods)})
    best = {cell.label for cell in plan([artefact], run.cells).values() if cell.seed}
    of_plan = [cell for cell in found.finished if budget(cell) == LAPTOP]
    table = [cell for cell in of_plan if cell.get("label") in best] if of_plan else found.finished
    by_rate = {name: values(table, name, number).values() for name in (against, *methods)}
    longest = {name: max(rates, key=len) for name, rates in by_rate.items() if rates}
    levels = {name: summarise(seeds) for name, seeds in longest.items() if len(seeds) >= FEWEST}
    others = {name: own for name, own in levels.items() if name != against}
    gaps = differences(levels[against], others) if against in levels else {}
    weighed = []
    for name, gap in gaps.items():
        answer = criterion(gap, smallest_that_counts(named(number), levels[against].mean))
        weighed.append(SettingFinding(CellSetting(artefact, (), (name,)), answer, gap.value, str(gap)))
    for name in methods if gaps else ():
        if name not in gaps:
            unknown = "fewer than two seeds finished"
            weighed.append(SettingFinding(CellSetting(artefact, (), (name,)), Answer.UNDECIDED, math.nan, unknown))
    question = Question(
        f"{named(number)} less that of {against}, each at its own rate",
        seed_rule(list(gaps.values()), len(gaps), "readings"),
        f"no difference as claimed of {counts_from(named(number))} or more",
        some=True,
        settings="readings",
    )
    return decide(question, found, weighed)


def in_one_reading(found: Mapping[str, Evidence]) -> Evidence:
    """The evidence of all readings, by name: as claimed if it is in one, opposed if it is in each.

    >>> both = {"one": Evidence(HOLDS, "Lower.", {"gap": -1.0}), "other": Evidence(SCALE, "Open.", {"gap": 0.0})}
    >>> in_one_reading(both).sentence
    'one: Lower. other: Open.'
    """
    sentence = " ".join(f"{name}: {evidence.sentence}" for name, evidence in found.items())
    numbers = {f"{name}: {key}": value for name, own in found.items() for key, value in own.numbers.items()}
    return Evidence(_best([evidence.verdict for evidence in found.values()]), sentence, numbers)


def _best(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    """Pending until all readings are trained, since each of them widens the intervals of the others."""
    found: ClaimVerdict = NOT_REPRODUCED if all(verdict == NOT_REPRODUCED for verdict in verdicts) else SCALE
    for stronger in (CONDITION, HOLDS, PENDING):
        found = stronger if stronger in verdicts else found
    return found
