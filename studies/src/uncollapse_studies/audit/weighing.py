"""Weigh the cells: two methods against each other, or a number by itself.

What a difference is worth is decided in `reproduction/seeds.py`, for the results page too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from uncollapse.statistics import CONFIDENCE, FEWEST, SMALLEST, SMALLEST_SHARE, Difference, difference
from uncollapse.statistics import level as mean_over

from .cells import CellSelection, CellSetting, Number, gather, named, values
from .claim import AuditRun, Evidence
from .deciding import Answer, Question, SettingFinding, decide
from .plan import one_seed_planned

Judge = Callable[[Difference], Answer]
OVER_SEEDS = f", at {100 * CONFIDENCE:g} % confidence over seeds"


def toward(expected: int) -> Judge:
    """The number is higher (1) or lower (-1): so, opposed, too little to count, or undecided."""

    def wanted(found: Difference) -> Answer:
        if found.sign:
            return Answer.AS_CLAIMED if found.sign == expected else Answer.OPPOSED
        return Answer.TOO_SMALL if found.excludes(expected) else Answer.UNDECIDED

    return wanted


def between(least: float, most: float) -> Judge:
    """The whole interval lies between two bounds: so, opposed (all outside), or undecided."""

    def wanted(found: Difference) -> Answer:
        if found.low > least and found.high < most:
            return Answer.AS_CLAIMED
        return Answer.OPPOSED if found.low > most or found.high < least else Answer.UNDECIDED

    return wanted


def counts_from(number: str) -> str:
    """The smallest difference that counts, in words.

    >>> counts_from("accuracy"), counts_from("perplexity")
    ('2 points', '2 %')
    """
    return f"{SMALLEST[number]:g} points" if number in SMALLEST else f"{100 * SMALLEST_SHARE:g} %"


def when_it_counts(artefacts: Sequence[str], number: Number) -> str:
    """When a difference is as claimed and when it opposes, with as many seeds as are planned; for docstrings."""
    least = counts_from(named(number))
    if all(map(one_seed_planned, artefacts)):
        return (
            f"with the one seed that is planned, by more than {least}; opposed if it differs by more than that the "
            "other way; undecided in between"
        )
    return (
        f"the {100 * CONFIDENCE:g} % interval of the difference over seeds excludes 0; opposed if it excludes 0 on the "
        f"other side or a difference as claimed of {least} or more"
    )


def compare(
    run: AuditRun,
    artefacts: Sequence[str],
    number: Number,
    method: str,
    against: str,
    wanted: Judge,
    *,
    only: Mapping[str, float] | None = None,
    some: bool = False,
    share: float = 1.0,
    least: float = 0.0,
    chance: float = 0.0,
) -> Evidence:
    """Whether `method` stands to `against` as claimed in every setting that both were trained in, or in `some`.

    `only` are settings that cells of `method` must have. With a `share` below 1 the number must also be below that
    share of the other's for the claim to hold in full. Where the other's is below `least`, there is nothing to lose,
    and where both are below `chance`, both guess: such a setting tells nothing. One seed is enough where no more are
    planned.
    """
    found = gather(run.cells, artefacts, {method: only or {}, against: {}})
    pairs, name = _pairs(found, number, method, against), named(number)
    confidence = 1.0 - (1.0 - CONFIDENCE) / len(pairs) if some and pairs else CONFIDENCE  # one of many may be luck
    weighed = []
    for own, (base, other) in pairs.items():
        gap = difference(name, base, other, confidence)
        answer, shown = wanted(gap), str(gap)
        if least or chance or share < 1.0:
            means = float(np.mean(base)), float(np.mean(other))
            shown += f", {means[1]:.3g} against {means[0]:.3g}"
            answer = _by_level(answer, *means, share, least, chance)
        weighed.append(SettingFinding(own, answer, gap.gap, shown))
    with_these = f" with {', '.join(f'{key} {value:g}' for key, value in only.items())}" if only else ""
    question = Question(
        f"{name} of {method}{with_these} less that of {against}",
        _rule(name, {min(map(len, pair)) for pair in pairs.values()}, some),
        f"no difference as claimed of {counts_from(name)} or more",
        some,
    )
    return decide(question, found, weighed)


def _pairs(
    found: CellSelection, number: Number, method: str, against: str
) -> dict[CellSetting, tuple[list[float], list[float]]]:
    """The values of both methods over seeds, the base first, by setting; only where there are seeds enough."""
    bases = {own.base: seeds for own, seeds in values(found.finished, against, number).items()}
    return {
        own: (bases[own.base], seeds)
        for own, seeds in values(found.finished, method, number).items()
        if own.base in bases and min(len(seeds), len(bases[own.base])) >= _fewest(own)
    }


def _by_level(answer: Answer, base: float, other: float, share: float, least: float, chance: float) -> Answer:
    """The answer once the levels are known: nothing is tested, or "it disappears" is met in part."""
    if base < least:
        return Answer.NOTHING
    if max(base, other) < chance:
        return Answer.GUESSING
    too_much = share < 1.0 and other > share * base
    return Answer.IN_PART if answer == Answer.AS_CLAIMED and too_much else answer


def _fewest(own: CellSetting) -> int:
    return 1 if one_seed_planned(own.artefact) else FEWEST


def _rule(number: str, seeds: Collection[int], some: bool) -> str:
    """What the answers of a comparison rest on."""
    words = OVER_SEEDS + " for all settings together" * some if any(own >= FEWEST for own in seeds) else ""
    if any(own < FEWEST for own in seeds):
        words += f"; with one seed a difference counts from {counts_from(number)} on"
    return words


def level(run: AuditRun, artefacts: Sequence[str], number: Number, methods: Sequence[str], wanted: Judge) -> Evidence:
    """Whether a number of each method itself is as claimed: the confidence interval of its mean over seeds."""
    found = gather(run.cells, artefacts, {method: {} for method in methods})
    weighed = []
    for method in methods:
        for own, seeds in values(found.finished, method, number).items():
            if len(seeds) >= FEWEST:
                mean = mean_over(seeds)
                shown = f"{mean.gap:.3g} ({mean.low:.3g} to {mean.high:.3g})"
                named_own = CellSetting(own.artefact, own.shared, (method, *own.own))
                weighed.append(SettingFinding(named_own, wanted(mean), mean.gap, shown))
    what = named(number) if len(methods) > 1 else f"{named(number)} of {methods[0]}"
    return decide(Question(what, OVER_SEEDS, ""), found, weighed)
