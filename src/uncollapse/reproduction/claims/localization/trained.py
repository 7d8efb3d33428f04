"""Section 7 and Appendix D: statements about trained networks, decided by cells of the reproduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..cells import Cell, Number, Wanted, above_zero, below_zero, compare, level, made_up, named, trend
from ..claim import HOLDS, Evidence, Mutation, Run, claim

# kappa_1 = kappa_2 = 0; kappa_1 = 100 with kappa_2 = 0; kappa_1 = 100 with kappa_2 > 0
PLAIN, SCALE_ONLY, OURS = "plain", "scale-only", "locater"
KAPPA_SCALE, KAPPA_MEANS = 100.0, (0.0, 1e-3, 1e-2, 1e-1, 1.0)
FIRST = 0.2  # of the updates: the first 10,000 of 50,000
PHASES = 0.5  # rates that differ by half the larger one, a factor of two, count as different
UNIFORM = 0.1  # index of localisation below which propagation counts as uniform
_NEXT = "Read the cells when they are in; until then this is open."
_FIGURES = {
    6: "d = 128, one layer",
    8: "d = 32, one layer",
    9: "d = 32, three layers",
    10: "d = 32, six layers",
    11: "d = 128, three layers",
    12: "d = 128, six layers",
}


def entropy_throughout(cell: Cell) -> float | None:
    """Attention entropy, mean over all updates."""
    curve = [value for value in cell.get("curves", {}).get("entropy_mean", ()) if value is not None]
    return float(np.mean(curve)) if curve else None


def change_of_rate(cell: Cell) -> float | None:
    """Change of the entropy's rate after the first fifth, over the larger of the two rates."""
    curves = cell.get("curves", {})
    points = [(s, v) for s, v in zip(curves.get("step", ()), curves.get("entropy_mean", ()), strict=True)
              if v is not None]  # fmt: skip
    if not points:
        return None
    cut = FIRST * points[-1][0]
    early, late = [p for p in points if p[0] <= cut], [p for p in points if p[0] >= cut]
    if min(len(early), len(late)) < 2:
        return None
    rates = [float(np.polyfit([s for s, _ in part], [v for _, v in part], 1)[0]) for part in (early, late)]
    return abs(rates[0] - rates[1]) / max(abs(rate) for rate in (*rates, 1e-300))


def _beyond(least: float) -> Wanted:
    return lambda low, high: True if low > least else False if high < least else None


def _below(most: float) -> Wanted:
    return lambda low, high: True if high < most else False if low > most else None


_NUMBERS: dict[str, tuple[str, Number, float, Wanted, tuple[int, ...]]] = {
    "scale": ("the eigenspectrum's scale shrinks", "qk_scale", 0.8, below_zero, tuple(_FIGURES)),
    "entropy": ("the attention entropy increases", "entropy_mean", 1.2, above_zero, tuple(_FIGURES)),
    "perplexity": ("the perplexity improves", "perplexity", 0.9, below_zero, tuple(_FIGURES)),
    "entropy-throughout": ("attention entropy is higher during all of training", entropy_throughout, 1.2, above_zero,
                           (6,)),
    "localises": ("attention localises, and this is what the better perplexity comes with", "localisation", 1.2,
                  above_zero, (6,)),
}  # fmt: skip


def _strengths(artefact: str, number: Number, factor: float) -> list[Cell]:
    """Made-up cells whose number changes by a factor from one kappa_2 to the next."""
    found: list[Cell] = []
    for n, kappa in enumerate(KAPPA_MEANS):
        own = {"kappa_scale": KAPPA_SCALE, "kappa_mean": kappa}
        name = "number" if callable(number) else number
        size = 10.0 * factor**n
        for cell in made_up(artefact, name, {OURS if kappa else SCALE_ONLY: size}, [own]):
            found.append({**cell, "curves": {"step": [0, 1], "entropy_mean": [size, size]}})
    return found


def _register(
    id: str, place: str, statement: str, artefact: str, check: Callable[[Run], Evidence], cells: Sequence[Cell]
) -> None:
    mutation = Mutation("made-up cells that agree with it", HOLDS, cells=cells)
    claim(id, place, statement, consequence=_NEXT, mutation=mutation, artefacts=(artefact,))(check)


def _over_kappa(figure: int, key: str) -> None:
    """A number over kappa_2 at kappa_1 = 100, as in the figures."""
    words, number, factor, wanted, _ = _NUMBERS[key]
    artefact = f"localization-fig{figure}"

    def check(run: Run) -> Evidence:
        return trend(run, [artefact], number, (SCALE_ONLY, OURS), wanted)

    what = "falls" if wanted is below_zero else "rises"
    check.__doc__ = (
        f"A straight line through {named(number)} over the rank of kappa_2, kappa_1 = 100. Holds if it {what}: the "
        "95 % interval of its slope excludes 0."
    )
    _register(
        f"localization-fig{figure}-{key}",
        f"{'Section 7' if figure == 6 else 'Appendix D'}, Figure {figure}",
        f"With a stronger kappa_2, {words} (WikiText-2, {_FIGURES[figure]}).",
        artefact,
        check,
        _strengths(artefact, number, factor),
    )


for _figure in _FIGURES:
    for _key in _NUMBERS:
        if _figure in _NUMBERS[_key][-1]:
            _over_kappa(_figure, _key)


def _stripes(run: Run) -> Evidence:
    """Index of localisation of rho with kappa_1 = 100, kappa_2 = 1 against no penalty.

    Holds if the 95 % interval of the difference over seeds is above 0.
    """
    return compare(run, ["localization-fig7"], "localisation", OURS, PLAIN, above_zero)


def _uniform(run: Run) -> Evidence:
    """Index of localisation of rho without penalty (0: all tokens alike, 1: one token).

    Holds if its 95 % interval over seeds is below 0.1.
    """
    return level(run, ["localization-fig7"], "localisation", (PLAIN,), _below(UNIFORM))


def _phases(run: Run) -> Evidence:
    """Rate of change of the attention entropy in the first fifth of the updates against the rest.

    Holds if the two differ by a factor of two or in sign, at 95 % over seeds, with LocAteR and without.
    """
    return level(run, ["localization-fig7"], change_of_rate, (OURS, PLAIN), _beyond(PHASES))


_made: dict[str, Any] = {"step": [0, 10, 20, 60, 100], "entropy_mean": [4.0, 3.0, 2.0, 2.0, 2.0]}
_FIG_7 = "localization-fig7"
_register(
    "localization-fig7-stripes", "Section 7, Figure 7, top",
    "With LocAteR a few tokens propagate more than the others (stripes).",
    _FIG_7, _stripes, made_up(_FIG_7, "localisation", {PLAIN: 0.05, OURS: 0.5}),
)  # fmt: skip
_register(
    "localization-fig7-uniform", "Section 7, Figure 7, bottom",
    "Without LocAteR the propagation probability is uniform at each time.",
    _FIG_7, _uniform, made_up(_FIG_7, "localisation", {PLAIN: 0.01, OURS: 0.5}),
)  # fmt: skip
_register(
    "localization-phases", "Section 7, after Figure 7",
    "Learning has different phases in the first 10,000 of 50,000 updates and in the rest.",
    _FIG_7, _phases,
    [{**cell, "curves": _made} for cell in made_up(_FIG_7, "entropy_mean", {PLAIN: 2.0, OURS: 2.0})],
)  # fmt: skip
