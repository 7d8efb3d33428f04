"""Statements of the first paper about trained networks: decided by cells of the reproduction, pending until then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...audit.cells import made_up
from ...audit.claim import AuditRun, Evidence
from ...audit.readings import compare_methods
from ...audit.trained import MORE_CELLS, trained
from ...audit.weighing import Criterion, between, compare, toward, when_it_counts
from ...cells.hopfield import OURS, PLAIN
from ...cells.readings import COMPARISONS, ID, LONGEST
from ...cells.readings import READINGS as SKIPS
from ..trained_skipfree import CHANCE
from ..trained_violins import ALIKE, GONE
from ..violins import GROUP
from .sources import source

HIDDEN_ONLY = "alpha-hidden-only"
NORMED_ONLY = (
    'The paper leaves open what alpha multiplies; these cells are of the reading `skip="normed"`, and those of another '
    "reading may come to another verdict."
)
LEVEL = 50.0  # of made-up plain networks: more than guessing, and a group


@dataclass(frozen=True)
class Direction:
    """How a number should differ: the criterion, what it says, and levels of made-up cells that agree and oppose."""

    criterion: Criterion
    words: str  # of the difference; {where} it must be seen, {rule} stands for when it counts
    agree: float
    oppose: float
    further: dict[str, Any] = field(default_factory=dict)  # arguments of compare


_NO_GROUP = f"where the plain network has a share below {GROUP:g} there is no group to lose, and nothing is tested"
DIRECTIONS = {
    "lower": Direction(toward(-1), "lower in {where}: {rule}", 0.9, 1.1),
    "higher": Direction(toward(1), "higher in {where}: {rule}", 1.1, 0.9),
    "higher unless both guess": Direction(
        toward(1),
        f"higher in {{where}}: {{rule}}; where both are below {CHANCE:g} % both guess, and nothing is tested",
        1.1,
        0.9,
        {"chance": CHANCE},
    ),
    "higher for some": Direction(
        toward(1), "higher for one pair of alpha and alpha' at least: {rule}", 1.1, 0.9, {"some": True}
    ),
    "fewer": Direction(toward(-1), f"lower in {{where}}: {{rule}}; {_NO_GROUP}", 0.9, 1.1, {"least": GROUP}),
    "gone": Direction(
        toward(-1),
        f"lower and below {100 * GONE:g} % of the other's in {{where}}, and under a condition if it is only lower: "
        f"{{rule}}; {_NO_GROUP}",
        GONE / 2,
        1.1,
        {"share": GONE, "least": GROUP},
    ),
    "alike": Direction(
        between(-ALIKE, ALIKE),
        f"the same in {{where}}: the 95 % interval of the difference over seeds lies within {ALIKE:g} nats of 0; "
        "opposed if it lies outside",
        1.0,
        1.1,
    ),
}


def _trained(
    id: str,
    place: str,
    statement: str,
    gain: str,
    artefacts: Sequence[str],
    number: str,
    direction: str,
    method: str = OURS,
) -> None:
    """Register a comparison of two methods in one number."""
    way = DIRECTIONS[direction]

    def check(run: AuditRun) -> Evidence:
        return compare(run, artefacts, number, method, PLAIN, way.criterion, **way.further)

    words = way.words.format(where="every setting", rule=when_it_counts(artefacts, number))
    check.__doc__ = f"The number {number} of the method {method} against {PLAIN}. Holds if it is {words}."
    agree, oppose = (
        made_up(artefacts[0], number, {PLAIN: LEVEL, method: LEVEL * level}) for level in (way.agree, way.oppose)
    )
    mind = MORE_CELLS if method == HIDDEN_ONLY else f"{MORE_CELLS} {NORMED_ONLY}"
    known = source(id)
    trained(
        id,
        place,
        statement,
        artefacts,
        gain,
        check,
        agree,
        oppose,
        root="hopfield-trained",
        changes_our_mind=mind,
        **known,
    )


def _in_a_reading(id: str, place: str, statement: str, gain: str, model: str, number: str, direction: str) -> None:
    """Register a comparison that is made in every reading of the visible skip; the paper leaves open which it means."""
    artefact, share = f"{ID}{LONGEST[model]}", COMPARISONS[model].share
    way, methods = DIRECTIONS[direction], [f"{OURS}-{skip}" for skip in SKIPS]

    def check(run: AuditRun) -> Evidence:
        return compare_methods(run, artefact, number, methods, PLAIN, way.criterion)

    words = way.words.format(where="one reading of the skip at least", rule=when_it_counts([artefact], number))
    check.__doc__ = (
        f"The number {number} of hopfield with alpha = alpha' = {share:g} against {PLAIN}, with alpha times the tokens "
        f"before the norm (stream), after it (normed), or before it in place of the residual (replace), each at its "
        f"own rate. Holds if it is {words}."
    )
    agree, oppose = (
        made_up(artefact, number, {PLAIN: LEVEL} | dict.fromkeys(methods, LEVEL * level))
        for level in (way.agree, way.oppose)
    )
    trained(id, place, statement, [artefact], gain, check, agree, oppose, root="hopfield-trained", **source(id))


_VIOLINS = ["hopfield-similarity-gpt2", "hopfield-similarity-vit"]
_ROWS: list[tuple[Any, ...]] = [
    ("hopfield-probe", "Main text, linear probes", "Features of networks with inherited scores transfer better.",
     "features that transfer better with inherited scores", ["hopfield-probe"], "accuracy", "higher"),
    ("hopfield-ablation", "Main text, ablation", "Some alpha and alpha' improve ViT-T over the plain network.",
     "a higher accuracy from a well-chosen alpha and alpha'", ["hopfield-ablation"], "accuracy", "higher for some"),
    ("hopfield-skipfree", "Main text, networks without residual connections",
     "Without other residual connections, networks with inherited scores and the alpha-skip train better.",
     "a higher accuracy from inherited scores and the alpha-skip where there are no other residual connections",
     ["hopfield-skipfree"], "accuracy", "higher unless both guess"),
    ("hopfield-fig4-trained", "Appendix H, Figure 4",
     "In trained GPT-2 the group of perfectly aligned tokens disappears with inherited scores.",
     "fewer aligned tokens in GPT-2 with inherited scores", _VIOLINS[:1], "cosine_aligned", "gone"),
    ("hopfield-fig5-12-trained", "Appendix H, Figures 5 to 12",
     "In trained ViT the group of perfectly aligned tokens disappears with inherited scores.",
     "fewer aligned tokens in ViT with inherited scores", _VIOLINS[1:], "cosine_aligned", "gone"),
    ("hopfield-fig2-rank", "Main text, Figure 2's caption, on the abstract page",
     "In trained networks inherited scores keep the rank of the features from dropping (here: a larger residual "
     "ratio in "
     "the last layer).",
     "features that differ more in the last layer with inherited scores", _VIOLINS, "residual_ratio", "higher"),
    ("hopfield-abstract-hidden-trained", "Abstract",
     "In trained networks the hidden states, without the skip alpha, reduce token uniformity.",
     "fewer aligned tokens from the hidden states alone", _VIOLINS, "cosine_aligned", "fewer", HIDDEN_ONLY),
    ("hopfield-fig13-20-trained", "Appendix I, Figures 13 to 20",
     "Inherited scores leave the attention entropy of trained ViT as it is.",
     "an unchanged attention entropy of ViT with inherited scores", ["hopfield-entropy-vit"], "entropy_mean", "alike"),
]  # fmt: skip
_AS_NAMED = " in the reading that the evidence names"
_in_a_reading(
    "hopfield-main-gpt2", "Main text, GPT-2",
    "Trained from scratch, GPT-2 with inherited scores has a lower perplexity.",
    f"a lower perplexity of GPT-2 from inherited scores{_AS_NAMED}", "gpt2", "perplexity", "lower",
)  # fmt: skip
_in_a_reading(
    "hopfield-main-vit", "Main text, ViT", "Trained from scratch, ViT with inherited scores has a higher accuracy.",
    f"a higher accuracy of ViT from inherited scores{_AS_NAMED}", "vit", "accuracy", "higher",
)  # fmt: skip
for _row in _ROWS:
    _trained(*_row)
