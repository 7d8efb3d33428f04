"""Section 7 and Appendix D: statements about trained networks, decided by cells of the reproduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cells import above_zero, below_zero, compare, made_up
from ..claim import HOLDS, Evidence, Mutation, Run, claim

PLAIN, OURS = "plain", "locater"
_FIGURES = {
    6: "d = 128, one layer",
    8: "d = 32, one layer",
    9: "d = 32, three layers",
    10: "d = 32, six layers",
    11: "d = 128, three layers",
    12: "d = 128, six layers",
}
_NUMBERS: dict[str, tuple[str, str, float, Callable[[float, float], bool]]] = {
    "scale": ("the eigenspectrum's scale shrinks", "qk_scale", 0.5, below_zero),
    "entropy": ("the attention entropy increases", "entropy", 1.5, above_zero),
    "perplexity": ("the perplexity improves", "perplexity", 0.8, below_zero),
}


def _trained(
    id: str,
    place: str,
    statement: str,
    artefact: str,
    number: str,
    level: float,
    wanted: Callable[[float, float], bool],
) -> None:
    """Register a comparison of LocAteR with plain training in one number."""
    artefacts: Sequence[str] = (artefact,)

    def check(run: Run) -> Evidence:
        return compare(run, artefacts, number, OURS, PLAIN, wanted)

    claim(
        id,
        place,
        statement,
        consequence="Read the cells when they are in; until then this is open.",
        mutation=Mutation(
            "made-up cells that agree with it",
            HOLDS,
            cells=made_up(artefact, number, {PLAIN: 10.0, OURS: 10.0 * level}),
        ),
        artefacts=artefacts,
    )(check)


for _figure, _network in _FIGURES.items():
    for _key, (_words, _number, _level, _wanted) in _NUMBERS.items():
        _trained(
            f"localization-fig{_figure}-{_key}",
            f"{'Section 7' if _figure == 6 else 'Appendix D'}, Figure {_figure}",
            f"With a stronger kappa_2, {_words} (WikiText-2, {_network}).",
            f"localization-fig{_figure}",
            _number,
            _level,
            _wanted,
        )
_trained(
    "localization-fig7-stripes",
    "Section 7, Figure 7",
    "With LocAteR a few tokens propagate more than the others (stripes); without it propagation is uniform.",
    "localization-fig7",
    "localisation",
    2.0,
    above_zero,
)
