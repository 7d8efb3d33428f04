"""The cells of the first paper: six methods on text and images, ablation, skip-free networks, probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..printed import SHARES
from .cell import Budget, Cell
from .tiny import at_budget

# alpha None is the rule's own, which has to be said: the papers' recipes name 0.5.
METHODS: dict[str, dict[str, Any]] = {
    "self-attention": {"rule": "self_attention", "alpha": None},
    "hopfield": {"rule": "hopfield", "alpha": 0.5, "alpha_hidden": 0.5, "skip": "normed"},
    "alpha-only": {"rule": "hopfield", "alpha": 0.5, "alpha_hidden": 0.0, "skip": "normed"},
    "alpha-hidden-only": {"rule": "hopfield", "alpha": 0.0, "alpha_hidden": 0.5},
    "realformer": {"rule": "realformer", "alpha": None},
    "revit": {"rule": "revit", "alpha": None},
}
STRONGER = {  # the paper's ViT has it, too
    "hopfield-0.7": {"rule": "hopfield", "alpha": 0.7, "alpha_hidden": 0.7, "skip": "normed"},
}
PLAIN, OURS = "self-attention", "hopfield"
IN_VIOLINS = ("self-attention", "hopfield", "alpha-only", "alpha-hidden-only")
GRID = {  # of the ablation
    "laptop": (0.0, 0.25, 0.5, 0.75, 1.0),
    "tiny": (0.0, 0.5, 1.0),
    "paper": SHARES,
}
DEPTHS = {"laptop": (1, 2, 4, 8), "tiny": (1, 2), "paper": (1, 2, 4, 8, 12)}  # of the networks without residuals
# Budgets of a cell of some four minutes on two quiet cores, seven on one; the same for every method.
BUDGET: dict[str, dict[str, Any]] = {
    "gpt2-laptop": {"steps": 600, "eval_every": 120, "eval_examples": 512, "save_every": 60, "diagnose_every": 300},
    "vit-laptop": {"steps": 600, "eval_every": 150, "eval_examples": 5000, "save_every": 60, "diagnose_every": 300},
}
RECIPES = {
    "gpt2": {"laptop": "gpt2-laptop", "tiny": "gpt2-laptop", "paper": "gpt2-small"},
    "vit": {"laptop": "vit-laptop", "tiny": "vit-laptop", "paper": "vit-tiny"},
    "probe": {"laptop": "vit-probe-laptop", "tiny": "vit-probe-laptop", "paper": "vit-probe"},
}


def network(artefact: str, label: str, method: str, seed: int, budget: Budget, model: str, **keys: Any) -> Cell:
    """A cell of a GPT or ViT; `keys` come after those of the budget and of the method."""
    recipe = RECIPES[model][budget]
    own = {name: float(keys[name]) for name in ("alpha", "alpha_hidden") if keys.get(name) is not None}
    keys = at_budget(budget, recipe, {**BUDGET.get(recipe, {}), **keys})
    return Cell(artefact, label, method, seed, budget, recipe, keys, own)


def main_cells(artefact: str, model: str, budget: Budget, seeds: int, methods: Sequence[str] = ()) -> list[Cell]:
    """The central comparison."""
    known = METHODS | (STRONGER if budget == "paper" and model == "vit" else {})
    return [
        network(artefact, name, name, seed, budget, model, **known[name])
        for seed in range(seeds)
        for name in methods or known
    ]


LEARNED: dict[str, dict[str, Any]] = {  # alpha and alpha' are where the coefficients start
    "learned-from-half": {"rule": "hopfield", "alpha": 0.5, "alpha_hidden": 0.5, "skip": "stream", "learn_alpha": True}
}


def learned_cells(artefact: str, model: str, budget: Budget, seeds: int) -> list[Cell]:
    """Networks that learn how much they inherit, in the default reading, and plain self-attention."""
    known = {PLAIN: METHODS[PLAIN]} | LEARNED
    return [
        network(artefact, name, name, seed, budget, model, **keys)
        for seed in range(seeds)
        for name, keys in known.items()
    ]


def ablation_cells(budget: Budget, seeds: int) -> list[Cell]:
    """One of alpha and alpha' varies, the other is 0.5; and plain self-attention."""
    grid = GRID[budget]
    pairs = list(dict.fromkeys([*((0.5, value) for value in grid), *((value, 0.5) for value in grid)]))
    data = {"data": "cifar-100"} if budget == "paper" else {}
    return [
        network("hopfield-ablation", label, method, seed, budget, "vit", **keys, **data)
        for seed in range(seeds)
        for label, method, keys in _ablation(pairs)
    ]


def _ablation(pairs: Sequence[tuple[float, float]]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    yield PLAIN, PLAIN, METHODS[PLAIN]
    for alpha, hidden in pairs:
        label = f"alpha-{alpha:g}-hidden-{hidden:g}"
        yield label, OURS, {"rule": "hopfield", "alpha": alpha, "alpha_hidden": hidden, "skip": "normed"}


def skipfree_cells(budget: Budget, seeds: int) -> list[Cell]:
    """ViT blocks without their own residual connections, by depth."""
    return [
        network(
            "hopfield-skipfree",
            f"{name}-depth-{depth}",
            name,
            seed,
            budget,
            "vit",
            **METHODS[name] | {"residual": False, "layers": depth, "drop_path": 0.0},
        )
        for seed in range(seeds)
        for depth in DEPTHS[budget]
        for name in (PLAIN, OURS)
    ]


def probe_cells(budget: Budget, seeds: int) -> list[Cell]:
    """A new classifier on the frozen ViT of the central comparison; at the paper's budget on a ViT-B."""
    recipe = RECIPES["probe"][budget]
    cells = []
    for base in main_cells("hopfield-main-vit", "vit", budget, seeds):
        if budget == "paper":
            base = replace(base, recipe="vit-base", keys={**base.keys, "data": "imagenet-1k"})
        keys = at_budget(budget, recipe, {})
        cells.append(replace(base, artefact="hopfield-probe", recipe=recipe, keys=keys, base=base))
    return cells
