"""The cells of the second paper: one-head post-norm networks on WikiText-2 with LocAteR's penalty, and without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .cell import Budget, Cell
from .tiny import at_budget

PLAIN, OURS, SCALE_ONLY, ZERO = "plain", "locater", "scale-only", "forced-zero"
KAPPA_SCALE = 100.0
KAPPA_MEANS = (0.0, 1e-3, 1e-2, 1e-1, 1.0)
FORCED = 1e6  # a kappa_1 that leaves W_QK no choice but 0
TOKENS = "-tokens"  # ends the id of a figure whose penalty is added to the loss summed over tokens, as in fairseq
RATES = {128: 1e-3, 32: 4e-3}  # at laptop budget: 40 times the paper's 2.5e-5 and 1e-4


@dataclass(frozen=True)
class Network:
    """Width and depth of a figure's network, and at laptop budget its updates and minutes on two quiet cores."""

    width: int
    layers: int
    steps: int
    minutes: float


NETWORKS = {
    "localization-fig6": Network(128, 1, 1200, 3.5),
    "localization-fig8": Network(32, 1, 1000, 1.5),
    "localization-fig9": Network(32, 3, 800, 2.0),
    "localization-fig10": Network(32, 6, 900, 3.0),
    "localization-fig11": Network(128, 3, 800, 3.5),
    "localization-fig12": Network(128, 6, 600, 4.5),
}


def penalties(control: bool) -> dict[str, tuple[str, Mapping[str, float]]]:
    """Label -> method and the two kappas."""
    found: dict[str, tuple[str, Mapping[str, float]]] = {PLAIN: (PLAIN, {"kappa_scale": 0.0, "kappa_mean": 0.0})}
    for value in reversed(KAPPA_MEANS):
        method = OURS if value else SCALE_ONLY
        found[f"kappa-mean-{value:g}"] = (method, {"kappa_scale": KAPPA_SCALE, "kappa_mean": value})
    if control:
        found[ZERO] = (ZERO, {"kappa_scale": FORCED, "kappa_mean": 0.0})
    return found


def penalty_cells(artefact: str, budget: Budget, seeds: int) -> list[Cell]:
    """No penalty, and kappa_mean from strong to none."""
    chosen = penalties(control=artefact == "localization-fig6")
    return [
        _cell(artefact, artefact.removesuffix(TOKENS), label, method, seed, budget, kappas)
        for seed in range(seeds)
        for label, (method, kappas) in chosen.items()
    ]


def propagation_cells(artefact: str, budget: Budget, seeds: int) -> list[Cell]:
    """Figure 7: two networks of Figure 6, and between them the one with kappa_1 alone."""
    shown = (PLAIN, "kappa-mean-1", "kappa-mean-0")
    chosen = {label: found for label, found in penalties(False).items() if label in shown}
    return [
        _cell(artefact, "localization-fig6", label, method, seed, budget, kappas)
        for seed in range(seeds)
        for label, (method, kappas) in chosen.items()
    ]


def _cell(
    artefact: str, like: str, label: str, method: str, seed: int, budget: Budget, kappas: Mapping[str, float]
) -> Cell:
    network = NETWORKS[like]
    # Section 7: embedding, attention and feed-forward net all have the width d.
    keys: dict[str, Any] = {"width": network.width, "mlp_width": network.width, "layers": network.layers, **kappas}
    if artefact.endswith(TOKENS) and method != PLAIN:
        keys["normalisation"] = "tokens"
    recipe = f"localization-d{network.width}"
    if budget != "paper":
        recipe = "localization-laptop"
        training = {"steps": network.steps, "eval_every": network.steps // 10, "save_every": network.steps // 10}
        keys |= {"learning_rate": RATES[network.width], "diagnose_every": network.steps // 20, **training}
    return Cell(artefact, label, method, seed, budget, recipe, at_budget(budget, recipe, keys), _own(kappas, method))


def _own(kappas: Mapping[str, float], method: str) -> dict[str, float]:
    return {} if method == PLAIN else dict(kappas)
