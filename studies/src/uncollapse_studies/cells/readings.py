"""The cells of the fair comparison: every reading of the visible skip, each at its own learning rate.

Seed 0 tries rates a factor of 2 apart, until the best is not at an end. More seeds follow at the best rate alone. Rates
are constant after a short warm-up, so that a flat loss is not one that the schedule has flattened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uncollapse.statistics import FEWEST, difference, summarise

from .cell import Budget, Cell
from .hopfield import RECIPES
from .store import Store
from .tiny import at_budget

PLAIN = "self-attention"
READINGS = ("stream", "normed", "replace")
MOST_RATES = 9
WITHOUT_DROPOUT = {"dropout": 0.0, "drop_path": 0.0}  # at the paper's budget, for all: replace does not go with them


@dataclass(frozen=True)
class RateComparison:
    """One comparison: the keys that all networks have, the rates to try first, and the paper's alpha = alpha'."""

    rates: tuple[float, ...]  # a factor of 2 apart
    share: float  # in print it is 0.7 that makes ViT-T better on CIFAR-10, and 0.5 that makes it worse
    number: str  # that the paper's claim is about
    most_seeds: int  # where the first ones leave the difference from self-attention open
    keys: Mapping[str, Any]


COMPARISONS = {
    "gpt2": RateComparison(
        rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
        share=0.5,
        number="perplexity",
        most_seeds=5,
        keys={
            **{"tokenizer": "word", "vocab_size": 2000, "width": 64, "batch_size": 8, "schedule": "constant"},
            **{"steps": 4200, "eval_every": 420, "eval_examples": 512, "save_every": 420, "diagnose_every": 2100},
        },
    ),
    "vit": RateComparison(
        rates=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
        share=0.7,
        number="accuracy",
        most_seeds=3,  # spreads of points: two more could not show a gain of half a point either
        keys={
            **{"patch_size": 8, "width": 64, "schedule": "constant", "steps": 2000, "eval_every": 200},
            **{"eval_examples": 5000, "save_every": 1000, "diagnose_every": 1000},
        },
    ),
}


def methods(model: str) -> dict[str, dict[str, Any]]:
    """The keys of each method; what decides the paper's claim comes first.

    >>> list(methods("gpt2"))[:4]
    ['self-attention', 'hopfield-stream', 'hopfield-normed', 'hopfield-replace']
    """
    share = COMPARISONS[model].share
    found: dict[str, dict[str, Any]] = {PLAIN: {"rule": "self_attention", "alpha": None}}
    for name, hidden in (("hopfield", share), ("alpha", 0.0)):
        for skip in READINGS:
            found[f"{name}-{skip}"] = {"rule": "hopfield", "alpha": share, "alpha_hidden": hidden, "skip": skip}
    found["alpha-hidden"] = {"rule": "hopfield", "alpha": 0.0, "alpha_hidden": share}
    found["realformer"] = {"rule": "realformer", "alpha": None}
    found["revit"] = {"rule": "revit", "alpha": None}
    return found


def chosen(model: str, budget: Budget) -> list[str]:
    """The names of the methods to train: at laptop budget those that decide the claim, in a trial of seconds two.

    The parts of hopfield and its relatives would take one and a half times as long again; `hopfield-main` has them at
    one rate.
    """
    return list(methods(model))[: {"tiny": 2, "laptop": 1 + len(READINGS), "paper": None}[budget]]


def reading_cells(artefact: str, model: str, budget: Budget, seeds: int) -> list[Cell]:
    """Seed 0 of every method at the rates to try first, the middle one first."""
    rates = sorted(COMPARISONS[model].rates, key=lambda rate: _distance(rate, model))
    return [reading_cell(artefact, model, name, rate, 0, budget) for rate in rates for name in chosen(model, budget)]


def following_cells(artefact: str, model: str, budget: Budget, seeds: int, store: Store) -> list[Cell]:
    """What the finished cells ask for: rates beyond an end, then seeds at the best rate, then more seeds."""
    found, most = list[Cell](), COMPARISONS[model].most_seeds
    candidates: dict[str, list[Cell]] = {}  # by method, all seeds at the best rate
    for name in chosen(model, budget):
        extra, best = search_rates(artefact, model, name, budget, store)
        found += extra
        if best is not None:
            own = [reading_cell(artefact, model, name, best, seed, budget) for seed in range(max(seeds, most))]
            candidates[name] = own
            found += own[1:seeds]
    plain, number = candidates.get(PLAIN, []), COMPARISONS[model].number
    undecided = [name for name, own in candidates.items() if _undecided(plain, own, number, seeds, store)]
    for name in [PLAIN, *undecided] if undecided else []:
        found += candidates[name][seeds:]
    return found


def held_out_loss(store: Store, cell: Cell) -> float | None:
    """The last held-out loss; infinite where the run diverged, None where it is not trained."""
    record = store.current(cell)
    if record is None:
        return None
    finished = record["status"] == "finished"
    return float(record["numbers"].get("eval_loss", math.inf)) if finished else math.inf


def search_rates(artefact: str, model: str, name: str, budget: Budget, store: Store) -> tuple[list[Cell], float | None]:
    """The cells beyond the first rates, and the best rate; None as long as it is not known."""
    rates, extra = list(COMPARISONS[model].rates), list[Cell]()
    while True:
        losses = [held_out_loss(store, reading_cell(artefact, model, name, rate, 0, budget)) for rate in rates]
        known = [loss for loss in losses if loss is not None]
        if len(known) < len(losses):
            return extra, None
        best = min(range(len(rates)), key=lambda i: (known[i], _distance(rates[i], model)))
        if 0 < best < len(rates) - 1 or len(rates) >= MOST_RATES:
            return extra, rates[best]
        rates = [rates[0] / 2, *rates] if best == 0 else [*rates, rates[-1] * 2]
        extra.append(reading_cell(artefact, model, name, rates[0 if best == 0 else -1], 0, budget))


def _undecided(base: Sequence[Cell], own: Sequence[Cell], number: str, seeds: int, store: Store) -> bool:
    """Whether the first seeds leave the difference from self-attention open, by the number that the claim is about."""
    records = [[store.current(cell) for cell in cells[:seeds]] for cells in (base, own)]
    known = [
        [float(record["numbers"][number]) for record in found if record is not None and number in record["numbers"]]
        for found in records
    ]
    if seeds < FEWEST or any(len(values) < seeds for values in known) or base == own:
        return False
    plain, ours = (summarise(values) for values in known)
    return difference(plain, ours).verdict == "undecided"


def _distance(rate: float, model: str) -> float:
    """In factors of 2 from the middle of the rates to try first."""
    rates = COMPARISONS[model].rates
    return abs(math.log2(rate / rates[len(rates) // 2]))


def reading_cell(artefact: str, model: str, name: str, rate: float, seed: int, budget: Budget) -> Cell:
    """A method at a rate; its label names both."""
    recipe = RECIPES[model][budget]
    method = methods(model)[name]
    keys = {**(WITHOUT_DROPOUT if budget == "paper" else COMPARISONS[model].keys), **method, "learning_rate": rate}
    own = {key: float(method[key]) for key in ("alpha", "alpha_hidden") if method.get(key) is not None}
    return Cell(artefact, f"{name}-rate-{rate:g}", name, seed, budget, recipe, at_budget(budget, recipe, keys), own)
