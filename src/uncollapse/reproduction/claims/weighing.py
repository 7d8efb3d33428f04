"""Weigh the cells: two methods against each other, a number over kappa_2, a number by itself.

What a difference is worth is decided in `reproduction/seeds.py`, for the results page too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
from scipy.stats import linregress
from scipy.stats import t as student

from ..seeds import CONFIDENCE, FEWEST, SMALLEST, SMALLEST_SHARE, Difference, difference, interval
from .cells import Found, Number, Setting, gather, named, one_seed_planned, read, setting, values
from .claim import Evidence, Run
from .deciding import Answer, Question, Weighed, decide

Wanted = Callable[[Difference], Answer]
FEWEST_LEVELS = 3  # of kappa_2: two would leave no scatter about a line
LEAST_CHANGE = f"{100 * SMALLEST_SHARE:g} %"  # the smallest change that counts of a number without a unit of its own
OVER_SEEDS = f", at {100 * CONFIDENCE:g} % confidence over seeds"


def toward(expected: int) -> Wanted:
    """The number is higher (1) or lower (-1): so, opposed, too little to count, or undecided."""

    def wanted(found: Difference) -> Answer:
        if found.sign:
            return Answer.AS_CLAIMED if found.sign == expected else Answer.OPPOSED
        return Answer.TOO_SMALL if found.excludes(expected) else Answer.UNDECIDED

    return wanted


def between(least: float, most: float) -> Wanted:
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
    return f"{SMALLEST[number]:g} points" if number in SMALLEST else LEAST_CHANGE


def compare(
    run: Run,
    artefacts: Sequence[str],
    number: str,
    method: str,
    against: str,
    wanted: Wanted,
    *,
    some: bool = False,
    share: float = 1.0,
    least: float = 0.0,
) -> Evidence:
    """Whether `method` stands to `against` as claimed in every setting that both were trained in, or in `some`.

    With a `share` below 1 the number must also be below that share of the other's for the claim to hold in full. Where
    the other's is below `least`, there is nothing to lose, and the setting tells nothing. One seed is enough where no
    more are planned.
    """
    found = gather(run.cells, artefacts, (method, against))
    pairs = _pairs(found, number, method, against)
    confidence = 1.0 - (1.0 - CONFIDENCE) / len(pairs) if some and pairs else CONFIDENCE  # one of many may be luck
    weighed = []
    for own, (base, other) in pairs.items():
        gap = difference(number, base, other, confidence)
        answer, shown = wanted(gap), str(gap)
        if least or share < 1.0:
            shown += f", {np.mean(other):.3g} against {np.mean(base):.3g}"
            answer = _in_full(answer, float(np.mean(base)), float(np.mean(other)), share, least)
        weighed.append(Weighed(own, answer, gap.gap, shown))
    question = Question(
        f"{number} of {method} less that of {against}",
        _rule(number, {min(map(len, pair)) for pair in pairs.values()}, some),
        f"no difference as claimed of {counts_from(number)} or more",
        some,
    )
    return decide(question, found, weighed)


def _pairs(found: Found, number: str, method: str, against: str) -> dict[Setting, tuple[list[float], list[float]]]:
    """The values of both methods over seeds, the base first, by setting; only where there are seeds enough."""
    bases = {own.base: seeds for own, seeds in values(found.finished, against, number).items()}
    return {
        own: (bases[own.base], seeds)
        for own, seeds in values(found.finished, method, number).items()
        if own.base in bases and min(len(seeds), len(bases[own.base])) >= _fewest(own)
    }


def _in_full(answer: Answer, base: float, other: float, share: float, least: float) -> Answer:
    """The answer to "it disappears", from that to "it is lower"."""
    if base < least:
        return Answer.NOTHING
    return Answer.IN_PART if answer == Answer.AS_CLAIMED and other > share * base else answer


def _fewest(own: Setting) -> int:
    return 1 if one_seed_planned(own.artefact) else FEWEST


def _rule(number: str, seeds: Collection[int], some: bool) -> str:
    """What the answers of a comparison rest on."""
    words = OVER_SEEDS + " for all settings together" * some if any(own >= FEWEST for own in seeds) else ""
    if any(own < FEWEST for own in seeds):
        words += f"; with one seed a difference counts from {counts_from(number)} on"
    return words


def trend(
    run: Run, artefacts: Sequence[str], number: Number, methods: Sequence[str], expected: int, *, log: bool = False
) -> Evidence:
    """Whether a number rises (1) or falls (-1) with kappa_2: the slope of a line over its rank, in every setting.

    `methods` are those that share kappa_1 and differ in kappa_2. All seeds go into one line; the scatter about it gives
    the interval of its slope (Student). `log` is for numbers that span decades.
    """
    found = gather(run.cells, artefacts, methods)
    points: dict[Setting, list[tuple[float, float]]] = {}
    for cell in found.finished:
        kappa, value = cell.get("settings", {}).get("kappa_mean"), read(cell, number)
        if kappa is not None and value is not None and (value > 0.0 or not log):
            points.setdefault(setting(cell).base, []).append((float(kappa), math.log10(value) if log else value))
    weighed = []
    for own, pairs in points.items():
        if len({kappa for kappa, _ in pairs}) >= FEWEST_LEVELS and len(pairs) > FEWEST_LEVELS:
            change = _change(pairs, log)
            weighed.append(Weighed(own, toward(expected)(change), change.gap, str(change)))
    question = Question(
        f"Change over the whole range of kappa_2 of {'log10 of ' * log}{named(number)}",
        f"; the {100 * CONFIDENCE:g} % interval is from the scatter about a straight line, not over seeds",
        f"no change as claimed of {LEAST_CHANGE} or more",
    )
    return decide(question, found, weighed)


def _change(points: Sequence[tuple[float, float]], log: bool) -> Difference:
    """The change along the line from the lowest kappa_2 to the highest, and the smallest that counts."""
    levels = sorted({kappa for kappa, _ in points})
    numbers = [value for _, value in points]
    fit = linregress([levels.index(kappa) for kappa, _ in points], numbers)
    steps = len(levels) - 1
    half = student.ppf(0.5 + CONFIDENCE / 2, len(points) - 2) * fit.stderr
    smallest = math.log10(1.0 + SMALLEST_SHARE) if log else SMALLEST_SHARE * abs(float(np.mean(numbers)))
    return Difference(float(steps * fit.slope), float(steps * half), smallest, len(points))


def level(run: Run, artefacts: Sequence[str], number: Number, methods: Sequence[str], wanted: Wanted) -> Evidence:
    """Whether a number of each method itself is as claimed: the confidence interval of its mean over seeds."""
    found = gather(run.cells, artefacts, methods)
    weighed = []
    for method in methods:
        for own, seeds in values(found.finished, method, number).items():
            if len(seeds) >= FEWEST:
                mean = Difference(*interval([0.0, 0.0], seeds), 0.0, len(seeds))
                shown = f"{mean.gap:.3g} ({mean.low:.3g} to {mean.high:.3g})"
                named_own = Setting(own.artefact, own.shared, (method, *own.own))
                weighed.append(Weighed(named_own, wanted(mean), mean.gap, shown))
    what = named(number) if len(methods) > 1 else f"{named(number)} of {methods[0]}"
    return decide(Question(what, OVER_SEEDS, ""), found, weighed)
