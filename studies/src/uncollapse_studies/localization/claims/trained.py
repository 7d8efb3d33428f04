"""Section 7 and Appendix D: statements about trained networks, decided by cells of the reproduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncollapse.theory.form import Array

from ...audit.cells import Number, made_up, named
from ...audit.claim import AuditRun, Evidence
from ...audit.plan import CellRecord
from ...audit.readings import in_one_reading
from ...audit.trained import MORE_CELLS, trained
from ...audit.weighing import between, beyond, compare, level, toward, when_it_counts

# kappa_1 = kappa_2 = 0; kappa_1 = 100 with kappa_2 = 0; kappa_1 = 100 with kappa_2 > 0
from ...cells.localization import KAPPA_MEANS, KAPPA_SCALE, OURS, PLAIN, SCALE_ONLY, TOKENS
from ...cells.measured import throughout
from ..trained_propagation import NUMBER, UNIFORM
from .sources import QUOTES, SEED

STRONGEST = KAPPA_MEANS[-1]  # kappa_2
PHASES = 10.0  # of BIC: very strong evidence for a second phase; noise about one phase exceeds it once in 200 curves
FEWEST_POINTS = 4  # of a curve in one phase
MORE_PARAMETERS = 4  # of two phases: a second curve of three, and the place of the break
RESOLUTION = 0.01  # nats, to which an entropy is known
RATES = np.logspace(-1.0, 2.0, 301)  # 1/tau, in units of the length of a phase
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


def second_phase(cell: CellRecord) -> float | None:
    """How much better two phases fit the entropy over training than one (difference of BIC)."""
    # one phase is c + a e^(-t/tau), rising or falling; two are one such curve up to some update, another from there
    curves = cell.get("curves", {})
    points = [v for v in curves.get("entropy_mean", ()) if v is not None]
    if len(points) < 2 * FEWEST_POINTS:
        return None
    values, count = np.asarray(points), len(points)
    breaks = range(FEWEST_POINTS, count - FEWEST_POINTS + 1)
    one = _misfit(values) + count * RESOLUTION**2
    two = min(_misfit(values[:n]) + _misfit(values[n:]) for n in breaks) + count * RESOLUTION**2
    return count * math.log(one / two) - MORE_PARAMETERS * math.log(count)


def _misfit(values: Array) -> float:
    """The least sum of squares that c + a e^(-t/tau) leaves, over a grid of tau of either sign."""
    t = np.linspace(0.0, 1.0, len(values))
    shapes = np.concatenate([np.exp(-RATES[:, None] * t), np.exp(RATES[:, None] * (t - 1.0))])
    shapes -= shapes.mean(axis=1, keepdims=True)
    rest = values - values.mean()
    explained = (shapes @ rest) ** 2 / np.maximum((shapes**2).sum(axis=1), 1e-300)
    return max(0.0, float(rest @ rest - explained.max()))


@dataclass(frozen=True)
class KappaEffect:
    """What a stronger kappa_2 is said to do to a number."""

    words: str
    gain: str
    number: Number
    expected: int  # 1: rises, -1: falls
    root: str
    figures: Sequence[int] = tuple(_FIGURES)
    curve: str = ""  # from which the number is computed, if it is


_ENTROPY = "localization-trained-entropy"
CHANGES = {
    "entropy": KappaEffect(
        "the attention entropy increases", "a higher attention entropy", "entropy_mean", 1, _ENTROPY
    ),
    "perplexity": KappaEffect(
        "the perplexity improves", "a better perplexity", "perplexity", -1, "localization-trained-perplexity"
    ),
    "entropy-throughout": KappaEffect(
        "attention entropy is higher on the mean over training",
        "a higher attention entropy on the mean over training",
        entropy_throughout,
        1,
        _ENTROPY,
        (6,),
        "entropy_mean",
    ),
    "localises": KappaEffect(
        "attention localises",
        "attention that is more localised",
        NUMBER,
        1,
        "localization-trained-localisation",
        (6,),
    ),
}
SCALE = KappaEffect(
    "the eigenspectrum's scale shrinks",
    "a smaller scale of the eigenspectrum",
    "qk_scale",
    -1,
    "localization-kappa2-scale",
)


NORMALISATIONS = {"penalty beside the mean loss": "", "penalty beside the summed loss": TOKENS}  # endings of ids
BOTH_NORMALISATIONS = (
    "The paper does not say what its penalty is added to: the mean loss of an update or, as in a criterion of fairseq, "
    "the loss summed over tokens, where kappa is 4,096 times weaker. It holds if it does in one of the two readings."
)


def _readings(figures: Sequence[int]) -> dict[str, list[str]]:
    """The artefacts of some figures in each normalisation of the penalty."""
    return {words: [f"localization-fig{n}{ending}" for n in figures] for words, ending in NORMALISATIONS.items()}


def _compare(
    run: AuditRun, figures: Sequence[int], number: Number, against: str, expected: int, beside: Sequence[Number] = ()
) -> Evidence:
    """LocAteR with the strongest kappa_2 against another method, in both readings."""
    readings = _readings(figures)
    return in_one_reading(
        {
            words: compare(
                run, artefacts, number, OURS, against, toward(expected), only={"kappa_mean": STRONGEST}, beside=beside,
                elsewhere=[id for other, ids in readings.items() if other != words for id in ids],
            )
            for words, artefacts in readings.items()
        }
    )  # fmt: skip


def _family(figure: int, effect: KappaEffect) -> list[Number]:
    """The other numbers by which the same networks of a figure are compared."""
    every = [SCALE, *(other for other in CHANGES.values() if figure in other.figures)]
    return [other.number for other in every if other is not effect]


def _weak_and_strong(artefacts: Sequence[str], change: KappaEffect, factor: float) -> list[CellRecord]:
    """Made-up cells without kappa_2 and with the strongest, whose number differs by a factor."""
    found: list[CellRecord] = []
    for artefact in artefacts:
        for method, kappa, size in ((SCALE_ONLY, 0.0, 10.0), (OURS, STRONGEST, 10.0 * factor)):
            own = {"kappa_scale": KAPPA_SCALE, "kappa_mean": kappa}
            found += made_up(artefact, change.curve or named(change.number), {method: size}, [own])
    return found


def _over_kappa(id: str, place: str, words: str, figures: Sequence[int], effect: KappaEffect) -> None:
    """A number with the strongest kappa_2 against kappa_2 = 0, both at kappa_1 = 100, in both normalisations."""
    artefacts = [id for ids in _readings(figures).values() for id in ids]
    one_of_each = [ids[0] for ids in _readings(figures).values()]
    beside = _family(figures[0], effect)

    def check(run: AuditRun) -> Evidence:
        return _compare(run, figures, effect.number, SCALE_ONLY, effect.expected, beside)

    check.__doc__ = (
        f"With kappa_2 = {STRONGEST:g} against kappa_2 = 0, both at kappa_1 = {KAPPA_SCALE:g}: {named(effect.number)}. "
        f"Holds if it is {'lower' if effect.expected < 0 else 'higher'} in one normalisation of the penalty at least: "
        f"{when_it_counts(artefacts, effect.number)}."
    )
    trained(
        id,
        place,
        f"With a stronger kappa_2, {effect.words} (WikiText-2{words}).",
        artefacts,
        f"{effect.gain} from a stronger kappa_2",
        check,
        _weak_and_strong(one_of_each, effect, 1.2**effect.expected),
        _weak_and_strong(one_of_each, effect, 1.2**-effect.expected),
        root=effect.root,
        quote=QUOTES[id],
        seed=SEED,
        changes_our_mind=f"{MORE_CELLS} {BOTH_NORMALISATIONS}",
    )


_over_kappa("localization-kappa2-scale", "Section 7 and Appendix D, Figures 6 and 8 to 12", "", tuple(_FIGURES), SCALE)
for _figure, _words in _FIGURES.items():
    for _key, _effect in CHANGES.items():
        if _figure in _effect.figures:
            _section = "Section 7" if _figure == 6 else "Appendix D"
            _over_kappa(
                f"localization-fig{_figure}-{_key}",
                f"{_section}, Figure {_figure}",
                f", {_words}",
                (_figure,),
                _effect,
            )

_FIG_7 = _readings([7])
_EVERY_7 = [id for ids in _FIG_7.values() for id in ids]


def _stripes(run: AuditRun) -> Evidence:
    """Index of localisation of rho, mean over training, with kappa_1 = 100, kappa_2 = 1 against no penalty."""
    return _compare(run, [7], localisation_throughout, PLAIN, 1)


_stripes.__doc__ = (
    f"{_stripes.__doc__} Holds if it is higher in one normalisation of the penalty at least: "
    f"{when_it_counts(_EVERY_7, localisation_throughout)}."
)


def _uniform(run: AuditRun) -> Evidence:
    """Index of localisation of rho, mean over training, without penalty (0: all tokens alike, 1: one token)."""
    return level(run, _EVERY_7[:1], localisation_throughout, (PLAIN,), between(-math.inf, UNIFORM))


_uniform.__doc__ = f"{_uniform.__doc__} Holds if its 95 % interval over seeds is below {UNIFORM:g}."


def _phases(run: AuditRun) -> Evidence:
    """The attention entropy over training fitted by two phases, with the break anywhere, against one smooth phase.

    Holds if two fit better by a difference of BIC above 10, at 95 % over seeds, with LocAteR and without; opposed if
    one fits better. The updates are fewer than the paper's, so that the break is not expected at its 10,000. One
    normalisation of the penalty is enough.
    """
    return in_one_reading(
        {
            words: level(run, ids, second_phase, (OURS, PLAIN), beyond(PHASES, 0.0), readings=len(_FIG_7))
            for words, ids in _FIG_7.items()
        }
    )


def _made_up(number: str, plain: float, ours: float) -> list[CellRecord]:
    """Cells of Figure 7 in both readings, with the strongest kappa_2 and without a penalty."""
    own = [{"kappa_mean": STRONGEST}]
    return [cell for id in _EVERY_7 for cell in made_up(id, number, {PLAIN: plain, OURS: ours}, own)]


def _rho(plain: float, ours: float) -> list[CellRecord]:
    return _made_up(NUMBER, plain, ours)


def _entropies(curve: Callable[[Array], Array]) -> list[CellRecord]:
    """Made-up cells with this entropy over training, for t from 0 to 1."""
    t = np.linspace(0.0, 1.0, 21)
    curves: dict[str, Any] = {"step": t.tolist(), "entropy_mean": curve(t).tolist()}
    return [{**cell, "curves": curves} for cell in _made_up("entropy_mean", 2.0, 2.0)]


def _figure_7(
    id: str,
    place: str,
    statement: str,
    gain: str,
    check: Callable[[AuditRun], Evidence],
    agree: Sequence[CellRecord],
    oppose: Sequence[CellRecord],
    root: str,
    artefacts: Sequence[str] = tuple(_EVERY_7),
) -> None:
    mind = MORE_CELLS if check is _uniform else f"{MORE_CELLS} {BOTH_NORMALISATIONS}"
    source = {"quote": QUOTES[id], "seed": SEED, "root": root, "changes_our_mind": mind}
    trained(id, place, statement, artefacts, gain, check, agree, oppose, **source)


_figure_7(
    "localization-fig7-stripes",
    "Section 7, Figure 7, top",
    "With LocAteR a few tokens propagate more than the others (stripes).",
    "stripes from LocAteR",
    _stripes,
    _rho(0.05, 0.5),
    _rho(0.5, 0.05),
    "localization-trained-propagation",
)
_figure_7(
    "localization-fig7-uniform",
    "Section 7, Figure 7, bottom",
    "Without LocAteR the propagation probability is uniform at each time.",
    "uniform propagation without LocAteR",
    _uniform,
    _rho(0.01, 0.5),
    _rho(0.5, 0.5),
    "localization-trained-propagation",
    _EVERY_7[:1],  # without a penalty there is nothing to normalise
)
_figure_7(
    "localization-phases",
    "Section 7, after Figure 7",
    "Learning has different phases in the first 10,000 of 50,000 updates and in the rest.",
    "two phases of learning",
    _phases,
    _entropies(lambda t: 4.0 - 2.0 * np.clip(5.0 * t, 0.0, 1.0) + 0.5 * np.clip(t - 0.5, 0.0, 1.0)),
    _entropies(lambda t: 2.0 + 2.0 * np.exp(-t / 0.3)),  # one smooth exponential
    "localization-trained-phases",
)
