"""How much the learning rate matters, plain and with each remedy.

The measure is that of Wortsman et al. (2023): the mean over rates of min(loss, loss of a guess), less the best loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from uncollapse.statistics import FEWEST, Estimate, SeedSummary, differences, summarise

from ..artefact import NO_CLAIM, ArtefactCells
from ..cells.remedies import PLAIN, RATES
from ..figure import Result
from ..trained import described, settings

LOSS = "eval_loss"


def result(found_cells: ArtefactCells) -> Result:
    """Table, chart and words."""
    from ..charts.trained_charts import rates_chart

    runs = all_runs(found_cells)
    found = compared(runs)
    names = list(dict.fromkeys(runs["label"]))
    return Result(
        table=found_cells.long_table(),
        chart=rates_chart(runs.rename(columns={"loss": "value"}), names, found_cells.artefact.title, "held-out loss"),
        sentences=[found_cells.progress(), *_sentences(found), *_setting(found_cells)],
        reading_aid="A dot is a trained network, a line is seed 0 over the rates. A network that diverged, or ended "
        "above the loss of a guess, counts as a guess. The flatter a line, the less the rate matters.",
        summary=summary(found),
        settings=settings(found_cells),
        verdict=NO_CLAIM,
        finding=" ".join(_sentences(found)[:1]),
    )


@dataclass(frozen=True)
class RateFinding:
    """One method over all rates and seeds."""

    sensitivity: SeedSummary
    best_rate: float
    loss: SeedSummary  # at the best rate
    largest_logit: float  # over seeds and rates; infinite where a run diverged
    against: Estimate | None = None  # the plain network's sensitivity
    loss_against: Estimate | None = None


def all_runs(found_cells: ArtefactCells) -> pd.DataFrame:
    """Columns label, seed, rate, loss, largest_logit, lowest_entropy; a run that diverged has the loss of a guess."""
    rows = []
    for cell, record in found_cells.records:
        recipe = cell.resolved()
        guess = math.log(float(recipe.vocab_size or 1))
        ended = record["status"] == "finished"
        numbers = record["numbers"] if ended else {}
        loss = float(numbers.get(LOSS, math.inf))
        rows.append(
            (
                cell.method,
                cell.seed,
                float(recipe.learning_rate),
                min(loss, guess) if math.isfinite(loss) else guess,
                float(numbers.get("largest_logit", math.inf)),
                float(numbers.get("lowest_entropy", 0.0)),
            )
        )
    return pd.DataFrame(rows, columns=["label", "seed", "rate", "loss", "largest_logit", "lowest_entropy"])


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
        found[str(name)] = RateFinding(summarise(values), best, summarise(at_best), float(kept["largest_logit"].max()))
    if PLAIN not in found:
        return found
    others = [name for name in found if name != PLAIN]
    gaps = differences(found[PLAIN].sensitivity, {name: found[name].sensitivity for name in others})
    losses = differences(found[PLAIN].loss, {name: found[name].loss for name in others})
    for name in others:
        own = found[name]
        found[name] = RateFinding(own.sensitivity, own.best_rate, own.loss, own.largest_logit, gaps[name], losses[name])
    return found


def summary(found: Mapping[str, RateFinding]) -> pd.DataFrame:
    """One row for each method."""
    rows = [
        {
            "method": name,
            "sensitivity": _shown(own.sensitivity),
            "against plain": "" if own.against is None else str(own.against),
            "best rate": f"{own.best_rate:g}",
            "loss at its best rate": _shown(own.loss),
            "its difference from plain": "" if own.loss_against is None else str(own.loss_against),
            "largest logit at any rate": "diverged" if math.isinf(own.largest_logit) else f"{own.largest_logit:,.0f}",
            "seeds": own.sensitivity.seeds,
        }
        for name, own in found.items()
    ]
    return pd.DataFrame(rows)


def evidence(found: Mapping[str, RateFinding], where: str) -> dict[str, str]:
    """One sentence for each remedy, for the table of contents of the remedies."""
    if PLAIN not in found:
        return {}
    plain = found[PLAIN]
    return {
        name: f"rate sensitivity {own.sensitivity.mean:.2f} against {plain.sensitivity.mean:.2f} without it "
        f"({_verdict(own.against)}), loss at the best rate {own.loss.mean:.2f} against {plain.loss.mean:.2f} "
        f"({_verdict(own.loss_against)}); {where}, {own.sensitivity.seeds} seeds"
        for name, own in found.items()
        if own.against is not None and own.sensitivity.seeds >= FEWEST
    }


def _verdict(gap: Estimate | None) -> str:
    assert gap is not None
    return {"lower": "better", "higher": "worse"}.get(gap.verdict, "undecided")


def _shown(own: SeedSummary) -> str:
    return f"{own.mean:.3f}" + ("" if math.isnan(own.spread) else f" ± {own.spread:.3f}")


def _sentences(found: Mapping[str, RateFinding]) -> list[str]:
    if PLAIN not in found or len(found) < 2:
        return []
    judged = {name: own for name, own in found.items() if own.against is not None}
    told = []
    for verdict, words in (("lower", "lower the sensitivity to the rate"), ("higher", "raise it")):
        names = [name for name, own in judged.items() if own.against is not None and own.against.verdict == verdict]
        names.sort(key=lambda name: judged[name].sensitivity.mean)
        listed = ", ".join(f"{name} ({judged[name].sensitivity.mean:.2f})" for name in names)
        if names:
            told.append(f"{listed} {words} ({found[PLAIN].sensitivity.mean:.2f} without a remedy).")
    rest = [name for name, own in judged.items() if own.against is not None and own.against.verdict == "undecided"]
    if rest:
        told.append(f"Undecided: {', '.join(rest)}.")
    worse = [n for n, own in judged.items() if own.loss_against is not None and own.loss_against.verdict == "higher"]
    if worse:
        told.append(
            f"At its own best rate each of these is worse than the plain network at its best: {', '.join(worse)}."
        )
    return told


def _setting(found_cells: ArtefactCells) -> list[str]:
    cell = found_cells.cells[0]
    return [f"{described([cell]).rpartition(', rate')[0]}; AdamW, warm-up and cosine, gradients clipped at 1."]
