"""Section 7 and Appendix D: statements about trained networks, decided by cells of the reproduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# kappa_1 = kappa_2 = 0; kappa_1 = 100 with kappa_2 = 0; kappa_1 = 100 with kappa_2 > 0
from ...cells.localization import KAPPA_MEANS, KAPPA_SCALE, OURS, PLAIN, SCALE_ONLY
from ...trained_propagation import UNIFORM
from ..cells import Cell, Number, made_up, named
from ..claim import Evidence, Run
from ..trained import trained
from ..weighing import LEAST_CHANGE, between, compare, level, toward, trend

FIRST = 0.2  # of the updates: the first 10,000 of 50,000
PHASES = 0.5  # rates that differ by half the larger one, a factor of two, count as different
_FIGURES = {
    6: "d = 128, one layer",
    8: "d = 32, one layer",
    9: "d = 32, three layers",
    10: "d = 32, six layers",
    11: "d = 128, three layers",
    12: "d = 128, six layers",
}


def entropy_throughout(cell: Cell) -> float | None:
    """Mean attention entropy during training."""
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


@dataclass(frozen=True)
class Change:
    """What a stronger kappa_2 is said to do to a number."""

    words: str
    gain: str
    number: Number
    expected: int  # 1: rises, -1: falls
    figures: Sequence[int] = tuple(_FIGURES)
    log: bool = False


CHANGES = {
    "scale": Change(
        "the eigenspectrum's scale shrinks", "a smaller scale of the eigenspectrum", "qk_scale", -1, log=True
    ),
    "entropy": Change("the attention entropy increases", "a higher attention entropy", "entropy_mean", 1),
    "perplexity": Change("the perplexity improves", "a better perplexity", "perplexity", -1),
    "entropy-throughout": Change(
        "attention entropy is higher on the mean over training",
        "a higher attention entropy on the mean over training",
        entropy_throughout,
        1,
        (6,),
    ),
    "localises": Change("attention localises", "attention that is more localised", "localisation", 1, (6,)),
}


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


def _over_kappa(figure: int, key: str) -> None:
    """A number over kappa_2 at kappa_1 = 100, as in the figures."""
    change = CHANGES[key]
    artefact = f"localization-fig{figure}"

    def check(run: Run) -> Evidence:
        return trend(run, [artefact], change.number, (SCALE_ONLY, OURS), change.expected, log=change.log)

    what, noun = ("falls", "fall") if change.expected < 0 else ("rises", "rise")
    check.__doc__ = (
        f"A straight line through {'log10 of ' * change.log}{named(change.number)} over the rank of kappa_2, kappa_1 = "
        f"100. Holds if it {what}: the 95 % interval of its slope, from the scatter about the line, excludes 0. Fails "
        f"if it excludes 0 on the other side, or a {noun} of {LEAST_CHANGE} or more over the whole range of kappa_2."
    )
    trained(
        f"localization-fig{figure}-{key}",
        f"{'Section 7' if figure == 6 else 'Appendix D'}, Figure {figure}",
        f"With a stronger kappa_2, {change.words} (WikiText-2, {_FIGURES[figure]}).",
        (artefact,),
        f"{change.gain} from a stronger kappa_2",
        check,
        _strengths(artefact, change.number, 1.2**change.expected),
        _strengths(artefact, change.number, 1.2**-change.expected),
    )


for _figure in _FIGURES:
    for _key in CHANGES:
        if _figure in CHANGES[_key].figures:
            _over_kappa(_figure, _key)

_FIG_7 = ("localization-fig7",)


def _stripes(run: Run) -> Evidence:
    """Index of localisation of rho with kappa_1 = 100, kappa_2 = 1 against no penalty.

    Holds if the 95 % interval of the difference over seeds is above 0.
    """
    return compare(run, _FIG_7, "localisation", OURS, PLAIN, toward(1))


def _uniform(run: Run) -> Evidence:
    """Index of localisation of rho without penalty (0: all tokens alike, 1: one token)."""
    return level(run, _FIG_7, "localisation", (PLAIN,), between(-math.inf, UNIFORM))


_uniform.__doc__ = f"{_uniform.__doc__} Holds if its 95 % interval over seeds is below {UNIFORM:g}."


def _phases(run: Run) -> Evidence:
    """Rate of change of the attention entropy in the first fifth of the updates against the rest.

    Holds if the two differ by a factor of two or in sign, at 95 % over seeds, with LocAteR and without.
    """
    return level(run, _FIG_7, change_of_rate, (OURS, PLAIN), between(PHASES, math.inf))


def _rho(plain: float, ours: float) -> list[Cell]:
    return made_up(_FIG_7[0], "localisation", {PLAIN: plain, OURS: ours})


def _entropies(*curve: float) -> list[Cell]:
    curves: dict[str, Any] = {"step": [0, 10, 20, 60, 100], "entropy_mean": curve}
    return [{**cell, "curves": curves} for cell in made_up(_FIG_7[0], "entropy_mean", {PLAIN: 2.0, OURS: 2.0})]


trained(
    "localization-fig7-stripes", "Section 7, Figure 7, top",
    "With LocAteR a few tokens propagate more than the others (stripes).",
    _FIG_7, "stripes from LocAteR", _stripes, _rho(0.05, 0.5), _rho(0.5, 0.05),
)  # fmt: skip
trained(
    "localization-fig7-uniform", "Section 7, Figure 7, bottom",
    "Without LocAteR the propagation probability is uniform at each time.",
    _FIG_7, "uniform propagation without LocAteR", _uniform, _rho(0.01, 0.5), _rho(0.5, 0.5),
)  # fmt: skip
trained(
    "localization-phases", "Section 7, after Figure 7",
    "Learning has different phases in the first 10,000 of 50,000 updates and in the rest.",
    _FIG_7, "two phases of learning", _phases,
    _entropies(4.0, 3.0, 2.0, 2.0, 2.0), _entropies(4.0, 3.8, 3.6, 2.8, 2.0),
)  # fmt: skip
