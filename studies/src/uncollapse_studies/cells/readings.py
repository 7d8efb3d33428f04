"""The cells of the fair comparison: every reading of the visible skip, each at its own learning rate.

Seed 0 tries rates a factor of 2 apart, until the best is not at an end. More seeds follow at the best rate alone. Rates
are constant after a short warm-up, so that a flat loss is not one that the schedule has flattened. A longer comparison
begins with the best rate of a shorter one and half of it, since longer training tends to ask for lower rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uncollapse.statistics import FEWEST, difference, summarise

from .cell import Budget, Cell
from .hopfield import RECIPES
from .store import Store
from .tiny import at_budget

ID = "hopfield-readings-"  # and the name of a comparison
PLAIN = "self-attention"
READINGS = ("stream", "normed", "replace")
MOST_RATES = 9
MOST_SEEDS = 5  # where the first ones leave the difference from self-attention open
WITHOUT_DROPOUT = {"dropout": 0.0, "drop_path": 0.0}  # at the paper's budget, for all: replace does not go with them


@dataclass(frozen=True)
class RateComparison:
    """One comparison: the keys that all networks have, the rates to try first, and the paper's alpha = alpha'."""

    model: str  # of RECIPES
    share: float  # in print it is 0.7 that makes ViT-T better on CIFAR-10, and 0.5 that makes it worse
    number: str  # that the paper's claim is about
    keys: Mapping[str, Any]
    rates: tuple[float, ...] = ()  # to try first, a factor of 2 apart
    shorter: str | None = None  # the comparison whose best rates are tried first instead, and what they are by method
    best_shorter: Mapping[str, float] = field(default_factory=dict)

    def first_rates(self, name: str) -> tuple[float, ...]:
        """The rates that a method is tried at first, from low to high."""
        return self.rates or (self.best_shorter[name] / 2, self.best_shorter[name])


_VIT_KEYS = {"patch_size": 8, "width": 64, "schedule": "constant", "eval_examples": 5000}
COMPARISONS = {
    "gpt2": RateComparison(
        model="gpt2",
        rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
        share=0.5,
        number="perplexity",
        keys={
            **{"tokenizer": "word", "vocab_size": 2000, "width": 64, "batch_size": 8, "schedule": "constant"},
            **{"steps": 4200, "eval_every": 420, "eval_examples": 512, "save_every": 420, "diagnose_every": 2100},
        },
    ),
    "vit": RateComparison(
        model="vit",
        rates=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
        share=0.7,
        number="accuracy",
        keys={**_VIT_KEYS, "steps": 2000, "eval_every": 200, "save_every": 1000, "diagnose_every": 1000},
    ),
    "vit-longer": RateComparison(
        model="vit",
        shorter="vit",
        best_shorter={PLAIN: 5e-4, "hopfield-stream": 2e-3, "hopfield-normed": 2e-3, "hopfield-replace": 1e-3},
        share=0.7,
        number="accuracy",
        keys={**_VIT_KEYS, "steps": 6000, "eval_every": 600, "save_every": 600, "diagnose_every": 3000},
    ),
}
LONGEST = {known.model: name for name, known in COMPARISONS.items()}  # by model: what a claim is decided by


def comparison_of(artefact: str) -> RateComparison:
    """The comparison with this id."""
    return COMPARISONS[artefact.removeprefix(ID)]


def methods(artefact: str) -> dict[str, dict[str, Any]]:
    """The keys of each method; what decides the paper's claim comes first.

    >>> list(methods("hopfield-readings-gpt2"))[:4]
    ['self-attention', 'hopfield-stream', 'hopfield-normed', 'hopfield-replace']
    """
    share = comparison_of(artefact).share
    found: dict[str, dict[str, Any]] = {PLAIN: {"rule": "self_attention", "alpha": None}}
    for name, hidden in (("hopfield", share), ("alpha", 0.0)):
        for skip in READINGS:
            found[f"{name}-{skip}"] = {"rule": "hopfield", "alpha": share, "alpha_hidden": hidden, "skip": skip}
    found["alpha-hidden"] = {"rule": "hopfield", "alpha": 0.0, "alpha_hidden": share}
    found["realformer"] = {"rule": "realformer", "alpha": None}
    found["revit"] = {"rule": "revit", "alpha": None}
    return found


def chosen(artefact: str, budget: Budget) -> list[str]:
    """The names of the methods to train: at laptop budget those that decide the claim, in a trial of seconds two.

    The parts of hopfield and its relatives would take one and a half times as long again; `hopfield-main` has them at
    one rate.
    """
    longer = comparison_of(artefact).shorter is not None  # its first rates are known for those that decide
    deciding = 1 + len(READINGS)
    return list(methods(artefact))[: {"tiny": 2, "laptop": deciding, "paper": deciding if longer else None}[budget]]


def reading_cells(artefact: str, budget: Budget, seeds: int) -> list[Cell]:
    """Seed 0 of every method at the rates to try first, the middle one first."""
    tried = [
        (_distance(rate, artefact, name), name, rate)
        for name in chosen(artefact, budget)
        for rate in comparison_of(artefact).first_rates(name)
    ]
    return [reading_cell(artefact, name, rate, 0, budget) for _, name, rate in sorted(tried, key=lambda one: one[0])]


def following_cells(artefact: str, budget: Budget, seeds: int, store: Store) -> list[Cell]:
    """What the finished cells ask for: rates beyond an end, then seeds at the best rate, then more seeds."""
    found = list[Cell]()
    candidates: dict[str, list[Cell]] = {}  # by method, all seeds at the best rate
    for name in chosen(artefact, budget):
        extra, best = search_rates(artefact, name, budget, store)
        found += extra
        if best is not None:
            own = [reading_cell(artefact, name, best, seed, budget) for seed in range(max(seeds, MOST_SEEDS))]
            candidates[name] = own
            found += own[1:seeds]
    plain, number = candidates.get(PLAIN, []), comparison_of(artefact).number
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


def search_rates(artefact: str, name: str, budget: Budget, store: Store) -> tuple[list[Cell], float | None]:
    """The cells beyond the first rates, and the best rate; None as long as it is not known."""
    rates, extra = list(comparison_of(artefact).first_rates(name)), list[Cell]()
    while True:
        losses = [held_out_loss(store, reading_cell(artefact, name, rate, 0, budget)) for rate in rates]
        known = [loss for loss in losses if loss is not None]
        if len(known) < len(losses):
            return extra, None
        best = min(range(len(rates)), key=lambda i: (known[i], _distance(rates[i], artefact, name)))
        if 0 < best < len(rates) - 1 or len(rates) >= MOST_RATES:
            return extra, rates[best]
        rates = [rates[0] / 2, *rates] if best == 0 else [*rates, rates[-1] * 2]
        extra.append(reading_cell(artefact, name, rates[0 if best == 0 else -1], 0, budget))


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


def _distance(rate: float, artefact: str, name: str) -> float:
    """In factors of 2 from the middle of the rates to try first."""
    rates = comparison_of(artefact).first_rates(name)
    return abs(math.log2(rate / rates[len(rates) // 2]))


def reading_cell(artefact: str, name: str, rate: float, seed: int, budget: Budget) -> Cell:
    """A method at a rate; its label names both."""
    comparison, method = comparison_of(artefact), methods(artefact)[name]
    recipe = RECIPES[comparison.model][budget]
    keys = {**(WITHOUT_DROPOUT if budget == "paper" else comparison.keys), **method, "learning_rate": rate}
    own = {key: float(method[key]) for key in ("alpha", "alpha_hidden") if method.get(key) is not None}
    return Cell(artefact, f"{name}-rate-{rate:g}", name, seed, budget, recipe, at_budget(budget, recipe, keys), own)
