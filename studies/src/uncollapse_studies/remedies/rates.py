"""How much the learning rate matters, plain and with each remedy, on one text.

The measure is that of Wortsman et al. (2023): the mean over rates of min(loss, loss of a guess), less the best loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import pandas as pd

from uncollapse.remedies.contents import APART
from uncollapse.statistics import Estimate, SeedSummary, differences, summarise

from ..short_runs.network import SYMBOLS
from ..short_runs.store import RunRecord
from .plan import METHODS, PLAIN, RATES

GUESS = math.log(SYMBOLS)
COLUMNS = ("text", "label", "seed", "rate", "loss", "largest_logit", "lowest_entropy")
PAIRED = 4  # the remedies with the lowest sensitivity, of which pairs are made
PAIRS = 2


@dataclass(frozen=True)
class RateFinding:
    """One method over all rates and seeds."""

    sensitivity: SeedSummary
    best_rate: float
    loss: SeedSummary  # at the best rate
    largest_logit: float  # at the end, over seeds and rates; infinite where a run diverged
    lowest_entropy: float  # of a head, as a share of even attention's, likewise; 0 where a run diverged
    against: Estimate | None = None  # the plain network's sensitivity
    loss_against: Estimate | None = None


def run_table(records: Iterable[RunRecord]) -> pd.DataFrame:
    """One row for each run; one that diverged, or ended above a guess, has the loss of a guess."""
    rows = []
    for record in records:
        ended = record["finished"] and record["held_out"] and record["held_out"][-1] is not None
        loss = min(float(record["held_out"][-1]), GUESS) if ended else GUESS
        logit, entropy = (record[name] if ended else None for name in ("largest_logit", "lowest_entropy"))
        about = (record["text"], record["method"], record["seed"], record["rate"])
        rows.append((*about, loss, math.inf if logit is None else logit, 0.0 if entropy is None else entropy))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"largest_logit": float, "lowest_entropy": float})


def sensitivity(losses: Mapping[float, float]) -> float:
    """Mean over rates of the loss, less the best.

    >>> round(sensitivity({0.1: 2.0, 0.2: 2.5, 0.4: 3.0}), 6)
    0.5
    """
    return sum(losses.values()) / len(losses) - min(losses.values())


def compared(runs: pd.DataFrame) -> dict[str, RateFinding]:
    """Every method whose rates are all trained for at least one seed, against the plain one, with Holm's correction."""
    found: dict[str, RateFinding] = {}
    for name, own in runs.groupby("label", sort=False):
        whole = {seed: one for seed, one in own.groupby("seed") if one["rate"].nunique() == own["rate"].nunique()}
        if own["rate"].nunique() < min(len(RATES), runs["rate"].nunique()) or not whole:
            continue
        kept = pd.concat(whole.values())
        best = float(kept.groupby("rate")["loss"].mean().idxmin())
        values = [sensitivity(dict(zip(one["rate"], one["loss"], strict=True))) for one in whole.values()]
        at_best = kept.loc[kept["rate"] == best, "loss"].tolist()
        extremes = float(kept["largest_logit"].max()), float(kept["lowest_entropy"].min())
        found[str(name)] = RateFinding(summarise(values), best, summarise(at_best), *extremes)
    if PLAIN not in found:
        return found
    others = [name for name in found if name != PLAIN]
    gaps = differences(found[PLAIN].sensitivity, {name: found[name].sensitivity for name in others})
    losses = differences(found[PLAIN].loss, {name: found[name].loss for name in others})
    return found | {name: replace(found[name], against=gaps[name], loss_against=losses[name]) for name in others}


def best_pairs(found: Mapping[str, RateFinding]) -> list[str]:
    """Pairs worth a try: of the four remedies that lower the sensitivity most, those that go together.

    >>> made = {name: RateFinding(summarise([own]), 0.1, summarise([2.0]), 1, 1) for name, own in
    ...         {"plain": 0.9, "qk_norm": 0.1, "qk_clip": 0.2, "sink": 0.3, "qk_rate": 0.6, "soft_cap": 0.7}.items()}
    >>> best_pairs(made)
    ['qk_norm + sink', 'qk_clip + sink']
    """
    singles = sorted((name for name in found if name in METHODS), key=lambda name: found[name].sensitivity.mean)
    lower = singles[: singles.index(PLAIN)] if PLAIN in singles else singles
    pairs = [pair for pair in combinations(lower[:PAIRED], 2) if frozenset(pair) not in APART]
    pairs.sort(key=lambda pair: sum(found[name].sensitivity.mean for name in pair))
    return [" + ".join(pair) for pair in pairs[:PAIRS]]


def summary(found: Mapping[str, RateFinding]) -> pd.DataFrame:
    """One row for each method, the least sensitive first."""
    rows = [
        {
            "method": name,
            "sensitivity": _shown(own.sensitivity),
            "against plain": "" if own.against is None else str(own.against),
            "best rate": f"{own.best_rate:g}",
            "loss at its best rate": _shown(own.loss),
            "its difference from plain": "" if own.loss_against is None else str(own.loss_against),
            "largest logit at any rate": "diverged" if math.isinf(own.largest_logit) else f"{own.largest_logit:,.0f}",
            "lowest entropy at any rate": f"{own.lowest_entropy:.3f}",
            "seeds": own.sensitivity.seeds,
        }
        for name, own in sorted(found.items(), key=lambda item: item[1].sensitivity.mean)
    ]
    return pd.DataFrame(rows)


def _shown(own: SeedSummary) -> str:
    return f"{own.mean:.3f}" + ("" if math.isnan(own.spread) else f" ± {own.spread:.3f}")


def sentences(found: Mapping[str, RateFinding], text: str) -> list[str]:
    """What it comes to on one text."""
    judged = {name: own for name, own in found.items() if own.against is not None and own.loss_against is not None}
    if PLAIN not in found or not judged:
        return []
    by_verdict = {
        verdict: [name for name, own in judged.items() if own.against and own.against.verdict == verdict]
        for verdict in ("lower", "higher", "undecided")
    }
    parts = []
    for verdict, words in (("lower", "make the rate matter less"), ("higher", "make it matter more")):
        names = sorted(by_verdict[verdict], key=lambda name: judged[name].sensitivity.mean)
        if names:
            parts.append(f"{', '.join(f'{name} ({judged[name].sensitivity.mean:.2f})' for name in names)} {words}")
    if by_verdict["undecided"]:
        parts.append(f"undecided: {', '.join(by_verdict['undecided'])}")
    told = [f"{text}: {'; '.join(parts)}. Without a remedy the sensitivity is {found[PLAIN].sensitivity.mean:.2f}."]
    for verdict, words in (("higher", "worse"), ("lower", "better")):
        names = [name for name, own in judged.items() if own.loss_against and own.loss_against.verdict == verdict]
        if names:
            told.append(f"{text}: {words} than the plain network, each at its own best rate: {', '.join(names)}.")
    return told
