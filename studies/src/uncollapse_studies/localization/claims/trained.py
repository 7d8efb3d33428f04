"""Section 7 and Appendix D: statements about trained networks, decided by cells of the reproduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...audit.cells import Number, made_up, named
from ...audit.claim import AuditRun, Evidence
from ...audit.plan import CellRecord
from ...audit.trained import trained
from ...audit.weighing import between, compare, level, toward, when_it_counts

# kappa_1 = kappa_2 = 0; kappa_1 = 100 with kappa_2 = 0; kappa_1 = 100 with kappa_2 > 0
from ...cells.localization import KAPPA_MEANS, KAPPA_SCALE, OURS, PLAIN, SCALE_ONLY
from ...cells.measured import throughout
from ..trained_propagation import NUMBER, UNIFORM

STRONGEST = KAPPA_MEANS[-1]  # kappa_2
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


def entropy_throughout(cell: CellRecord) -> float | None:
    """Mean attention entropy during training."""
    return throughout(cell, "entropy_mean")


def localisation_throughout(cell: CellRecord) -> float | None:
    """Localisation on the mean over training."""
    return throughout(cell, NUMBER)


def change_of_rate(cell: CellRecord) -> float | None:
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
class KappaEffect:
    """What a stronger kappa_2 is said to do to a number."""

    words: str
    gain: str
    number: Number
    expected: int  # 1: rises, -1: falls
    figures: Sequence[int] = tuple(_FIGURES)
    curve: str = ""  # from which the number is computed, if it is


CHANGES = {
    "scale": KappaEffect("the eigenspectrum's scale shrinks", "a smaller scale of the eigenspectrum", "qk_scale", -1),
    "entropy": KappaEffect("the attention entropy increases", "a higher attention entropy", "entropy_mean", 1),
    "perplexity": KappaEffect("the perplexity improves", "a better perplexity", "perplexity", -1),
    "entropy-throughout": KappaEffect(
        "attention entropy is higher on the mean over training",
        "a higher attention entropy on the mean over training",
        entropy_throughout,
        1,
        (6,),
        "entropy_mean",
    ),
    "localises": KappaEffect("attention localises", "attention that is more localised", NUMBER, 1, (6,)),
}


def _weak_and_strong(artefact: str, change: KappaEffect, factor: float) -> list[CellRecord]:
    """Made-up cells without kappa_2 and with the strongest, whose number differs by a factor."""
    found: list[CellRecord] = []
    for method, kappa, size in ((SCALE_ONLY, 0.0, 10.0), (OURS, STRONGEST, 10.0 * factor)):
        own = {"kappa_scale": KAPPA_SCALE, "kappa_mean": kappa}
        found += made_up(artefact, change.curve or named(change.number), {method: size}, [own])
    return found


def _over_kappa(figure: int, key: str) -> None:
    """A number with the strongest kappa_2 against kappa_2 = 0, both at kappa_1 = 100, as on the results page."""
    change = CHANGES[key]
    artefact = f"localization-fig{figure}"

    def check(run: AuditRun) -> Evidence:
        strongest, criterion = {"kappa_mean": STRONGEST}, toward(change.expected)
        return compare(run, [artefact], change.number, OURS, SCALE_ONLY, criterion, only=strongest)

    check.__doc__ = (
        f"With kappa_2 = {STRONGEST:g} against kappa_2 = 0, both at kappa_1 = {KAPPA_SCALE:g}: {named(change.number)}. "
        f"Holds if it is {'lower' if change.expected < 0 else 'higher'}: "
        f"{when_it_counts([artefact], change.number)}."
    )
    trained(
        f"localization-fig{figure}-{key}",
        f"{'Section 7' if figure == 6 else 'Appendix D'}, Figure {figure}",
        f"With a stronger kappa_2, {change.words} (WikiText-2, {_FIGURES[figure]}).",
        (artefact,),
        f"{change.gain} from a stronger kappa_2",
        check,
        _weak_and_strong(artefact, change, 1.2**change.expected),
        _weak_and_strong(artefact, change, 1.2**-change.expected),
    )


for _figure in _FIGURES:
    for _key in CHANGES:
        if _figure in CHANGES[_key].figures:
            _over_kappa(_figure, _key)

_FIG_7 = ("localization-fig7",)


def _stripes(run: AuditRun) -> Evidence:
    """Index of localisation of rho, mean over training, with kappa_1 = 100, kappa_2 = 1 against no penalty."""
    return compare(run, _FIG_7, localisation_throughout, OURS, PLAIN, toward(1))


_stripes.__doc__ = f"{_stripes.__doc__} Holds if it is higher: {when_it_counts(_FIG_7, localisation_throughout)}."


def _uniform(run: AuditRun) -> Evidence:
    """Index of localisation of rho, mean over training, without penalty (0: all tokens alike, 1: one token)."""
    return level(run, _FIG_7, localisation_throughout, (PLAIN,), between(-math.inf, UNIFORM))


_uniform.__doc__ = f"{_uniform.__doc__} Holds if its 95 % interval over seeds is below {UNIFORM:g}."


def _phases(run: AuditRun) -> Evidence:
    """Rate of change of the attention entropy in the first fifth of the updates against the rest.

    Holds if the two differ by a factor of two or in sign, at 95 % over seeds, with LocAteR and without.
    """
    return level(run, _FIG_7, change_of_rate, (OURS, PLAIN), between(PHASES, math.inf))


def _rho(plain: float, ours: float) -> list[CellRecord]:
    return made_up(_FIG_7[0], NUMBER, {PLAIN: plain, OURS: ours})


def _entropies(*curve: float) -> list[CellRecord]:
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
