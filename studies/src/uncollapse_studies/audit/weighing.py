"""Weigh trained networks: one method against another, or a number of a method by itself.

Whether a difference is real is decided by `uncollapse.statistics`, as on the results page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from uncollapse.statistics import CONFIDENCE, FEWEST, Estimate, SeedSummary, differences, holm, summarise

from ..trained import SMALLEST, SMALLEST_SHARE, smallest_that_counts
from .cells import CellSetting, Number, finished, gather, named, values
from .claim import AuditRun, Evidence
from .deciding import Answer, Question, SettingFinding, decide
from .plan import CellRecord, one_seed_planned

Criterion = Callable[[Estimate, float], Answer]  # an estimate and the smallest difference that counts -> answer
OVER_SEEDS = f", at {100 * CONFIDENCE:g} % confidence over seeds"


def toward(expected: int) -> Criterion:
    """The number is higher (1) or lower (-1): as claimed, opposed, too little to count, or undecided."""

    def criterion(found: Estimate, smallest: float) -> Answer:
        if found.verdict != "undecided":
            as_claimed = found.verdict == ("higher" if expected > 0 else "lower")
            return Answer.AS_CLAIMED if as_claimed else Answer.OPPOSED
        return Answer.TOO_SMALL if found.excludes(expected * smallest) else Answer.UNDECIDED

    return criterion


def between(least: float, most: float) -> Criterion:
    """The whole interval lies between two bounds: as claimed, opposed (all of it outside), or undecided."""

    def criterion(found: Estimate, _smallest: float) -> Answer:
        if found.low > least and found.high < most:
            return Answer.AS_CLAIMED
        return Answer.OPPOSED if found.low > most or found.high < least else Answer.UNDECIDED

    return criterion


def beyond(claimed: float, opposed: float) -> Criterion:
    """The whole interval lies above `claimed`: as claimed; below `opposed`: opposed; else undecided."""

    def criterion(found: Estimate, _smallest: float) -> Answer:
        if found.low > claimed:
            return Answer.AS_CLAIMED
        return Answer.OPPOSED if found.high < opposed else Answer.UNDECIDED

    return criterion


def counts_from(number: str) -> str:
    """The smallest difference that counts, in words.

    >>> counts_from("accuracy"), counts_from("perplexity")
    ('0.2 points', '2 %')
    """
    return f"{SMALLEST[number]:g} points" if number in SMALLEST else f"{100 * SMALLEST_SHARE:g} %"


def when_it_counts(artefacts: Sequence[str], number: Number) -> str:
    """When a difference is as claimed and when it opposes the claim; for docstrings."""
    one_seed = "; with the one seed that is planned it stays undecided" if all(map(one_seed_planned, artefacts)) else ""
    return (
        f"the {100 * CONFIDENCE:g} % interval of the difference over seeds excludes 0; opposed if it excludes 0 on the "
        f"other side or a difference as claimed of {counts_from(named(number))} or more{one_seed}"
    )


@dataclass(frozen=True)
class MethodPair:
    """A method and its base in one setting."""

    base: SeedSummary
    other: SeedSummary
    gap: Estimate
    compared: int  # comparisons of one family, this one among them: methods with the same base, or numbers


def compare(
    run: AuditRun,
    artefacts: Sequence[str],
    number: Number,
    method: str,
    against: str,
    criterion: Criterion,
    *,
    only: Mapping[str, float] | None = None,
    beside: Sequence[Number] = (),
    elsewhere: Sequence[str] = (),
    some: bool = False,
    share: float = 1.0,
    least: float = 0.0,
    chance: float = 0.0,
) -> Evidence:
    """Whether `method` stands to `against` as claimed in every setting that both were trained in, or in `some`.

    `only` are settings that cells of `method` must have, and then no other method is part of the comparison; `beside`
    are further numbers by which the same networks are compared, `elsewhere` the artefacts of another reading of the
    paper, and Holm's correction is over all of them. Without `only` it is over all methods of the same table, as on the
    results page. With a `share` below 1
    the number must also be below that share of the other's for the claim to hold in full. Where the other's is below
    `least`, there is nothing to lose, and where both are below `chance`, both guess: such a setting tests nothing.
    """
    asked = {method: only or {}, against: {}}
    found = gather(run.cells, artefacts, asked)
    name = named(number)
    table = found.finished if only else finished(artefacts, run.cells)
    pairs = method_pairs(table, number, method, against)
    if beside or elsewhere:
        there = gather(run.cells, elsewhere, asked).finished if elsewhere else ()
        others = [method_pairs(there, one, method, against).values() for one in (number, *beside)]
        numbers = [method_pairs(table, one, method, against) for one in beside]
        pairs = _corrected(pairs, numbers, [pair for found_there in others for pair in found_there])
    weighed = []
    for own, pair in pairs.items():
        answer, shown = criterion(pair.gap, smallest_that_counts(name, pair.base.mean)), str(pair.gap)
        if least or chance or share < 1.0:
            shown += f", {pair.other.mean:.3g} against {pair.base.mean:.3g}"
            answer = _by_level(answer, pair.base.mean, pair.other.mean, share, least, chance)
        weighed.append(SettingFinding(own, answer, pair.gap.value, shown))
    with_these = f" with {', '.join(f'{key} {value:g}' for key, value in only.items())}" if only else ""
    question = Question(
        f"{name} of {method}{with_these} less that of {against}",
        seed_rule(
            [pair.gap for pair in pairs.values()],
            max((pair.compared for pair in pairs.values()), default=1),
            "comparisons (numbers and readings)" if elsewhere else "numbers" if beside else "methods",
        ),
        f"no difference as claimed of {counts_from(name)} or more",
        some,
    )
    return decide(question, found, weighed)


def method_pairs(
    table: Sequence[CellRecord], number: Number, method: str, against: str
) -> dict[CellSetting, MethodPair]:
    """`method` against `against` by setting, with Holm's correction over all methods of a table."""
    bases = {own.base: summarise(seeds) for own, seeds in values(table, against, number).items()}
    others: dict[CellSetting, dict[tuple[str, CellSetting], SeedSummary]] = {}
    for name in dict.fromkeys(str(cell.get("method")) for cell in table if cell.get("method") != against):
        for own, seeds in values(table, name, number).items():
            if own.base in bases:
                others.setdefault(own.base, {})[name, own] = summarise(seeds)
    return {
        own: MethodPair(bases[base], summaries[name, own], gap, len(summaries))
        for base, summaries in others.items()
        for (name, own), gap in differences(bases[base], summaries).items()
        if name == method
    }


def _corrected(
    pairs: Mapping[CellSetting, MethodPair],
    beside: Sequence[Mapping[CellSetting, MethodPair]],
    elsewhere: Sequence[MethodPair],
) -> dict[CellSetting, MethodPair]:
    """The same pairs with Holm's correction over a family: this number, those beside it, and those of other readings.

    A comparison of one seed has no p-value and is not part of a family.
    """
    found = {}
    for own, pair in pairs.items():
        family = [pair, *(others[own] for others in beside if own in others), *elsewhere]
        p_values = [one.gap.p_value for one in family]
        compared = sum(not math.isnan(p) for p in p_values)
        found[own] = replace(pair, gap=replace(pair.gap, confidence=holm(p_values)[0]), compared=compared)
    return found


def _by_level(answer: Answer, base: float, other: float, share: float, least: float, chance: float) -> Answer:
    """The answer once the levels are known: nothing is tested, or "it disappears" is met in part."""
    if base < least:
        return Answer.NOTHING
    if max(base, other) < chance:
        return Answer.GUESSING
    too_much = share < 1.0 and other > share * base
    return Answer.IN_PART if answer == Answer.AS_CLAIMED and too_much else answer


def seed_rule(estimates: Sequence[Estimate], compared: int = 1, family: str = "methods") -> str:
    """What the answers of a comparison rest on: the end of a sentence."""
    words = OVER_SEEDS if any(estimate.seeds >= FEWEST for estimate in estimates) else ""
    if words and compared > 1:
        words += f", with Holm's correction for {compared} {family}"
    if any(estimate.seeds < FEWEST for estimate in estimates):
        words += "; one seed decides nothing"
    return words


def level(
    run: AuditRun,
    artefacts: Sequence[str],
    number: Number,
    methods: Sequence[str],
    criterion: Criterion,
    *,
    readings: int = 1,
) -> Evidence:
    """Whether a number of each method itself is as claimed: the confidence interval of its mean over seeds.

    Where one of several `readings` is enough, they share the risk of an error (Bonferroni's correction).
    """
    found = gather(run.cells, artefacts, {method: {} for method in methods})
    weighed, means = [], []
    for method in methods:
        for own, seeds in values(found.finished, method, number).items():
            mean = summarise(seeds).estimate(1.0 - (1.0 - CONFIDENCE) / readings)
            interval = f"{mean.low:.3g} to {mean.high:.3g}" if mean.seeds >= FEWEST else "one seed"
            named_own = CellSetting(own.artefact, own.shared, (method, *own.own))
            weighed.append(
                SettingFinding(named_own, criterion(mean, 0.0), mean.value, f"{mean.value:.3g} ({interval})")
            )
            means.append(mean)
    what = named(number) if len(methods) > 1 else f"{named(number)} of {methods[0]}"
    rule = seed_rule(means) + f", a risk that {readings} readings share" * (readings > 1)
    return decide(Question(what, rule, ""), found, weighed)
