"""Statements of the first paper about trained networks: decided by cells of the reproduction, pending until then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cells import Wanted, above_zero, below_zero, compare, made_up
from ..claim import HOLDS, Evidence, Mutation, Run, claim

PLAIN, OURS, HIDDEN_ONLY = "self-attention", "hopfield", "alpha-hidden-only"
ALIKE = 0.25  # nats: entropies closer than that count as unchanged
GONE = 0.1  # of the share of aligned pairs in the plain network: less than that counts as disappeared


def _within(low: float, high: float) -> bool | None:
    return True if low > -ALIKE and high < ALIKE else False if low > ALIKE or high < -ALIKE else None


_DIFFERENCE = "the 95 % interval of the difference over seeds"
# direction -> (judge of the interval, in words, level of made-up cells, further arguments of compare)
DIRECTIONS: dict[str, tuple[Wanted, str, float, dict[str, Any]]] = {
    "lower": (below_zero, f"{_DIFFERENCE} is below 0 in every setting", 0.9, {}),
    "higher": (above_zero, f"{_DIFFERENCE} is above 0 in every setting", 1.1, {}),
    "higher for some": (
        above_zero,
        f"{_DIFFERENCE} is above 0 for one pair of alpha and alpha' at least (95 % for all pairs together)",
        1.1,
        {"some": True},
    ),
    "gone": (
        below_zero,
        f"{_DIFFERENCE} is below 0 and the number below a tenth of the other's in every setting; under a condition if "
        "it is lower in some",
        0.05,
        {"share": GONE},
    ),
    "alike": (_within, f"{_DIFFERENCE} lies within {ALIKE} nats of 0 in every setting", 1.0, {}),
}


def _trained(
    id: str,
    place: str,
    statement: str,
    artefacts: Sequence[str],
    number: str,
    direction: str,
    method: str = OURS,
) -> None:
    """Register a comparison of two methods in one number."""
    wanted, words, level, further = DIRECTIONS[direction]

    def check(run: Run) -> Evidence:
        return compare(run, artefacts, number, method, PLAIN, wanted, **further)

    check.__doc__ = f"The number {number} of the method {method} against {PLAIN}. Holds if {words}."
    claim(
        id,
        place,
        statement,
        consequence="Read the cells when they are in; until then this is open.",
        mutation=Mutation(
            "made-up cells that agree with it",
            HOLDS,
            cells=made_up(artefacts[0], number, {PLAIN: 10.0, method: 10.0 * level}),
        ),
        artefacts=artefacts,
    )(check)


_VIOLINS = ["hopfield-similarity-gpt2", "hopfield-similarity-vit"]
_ROWS: list[tuple[Any, ...]] = [
    ("hopfield-main-gpt2", "Main text, GPT-2",
     "Trained from scratch, GPT-2 with inherited scores has a lower perplexity.",
     ["hopfield-main-gpt2"], "perplexity", "lower"),
    ("hopfield-main-vit", "Main text, ViT", "Trained from scratch, ViT with inherited scores has a higher accuracy.",
     ["hopfield-main-vit"], "accuracy", "higher"),
    ("hopfield-probe", "Main text, linear probes", "Features of networks with inherited scores transfer better.",
     ["hopfield-probe"], "accuracy", "higher"),
    ("hopfield-ablation", "Main text, ablation", "Some alpha and alpha' improve ViT-T over the plain network.",
     ["hopfield-ablation"], "accuracy", "higher for some"),
    ("hopfield-skipfree", "Main text, networks without residual connections",
     "Without other residual connections, networks with inherited scores and the alpha-skip train better.",
     ["hopfield-skipfree"], "accuracy", "higher"),
    ("hopfield-fig4-trained", "Appendix H, Figure 4",
     "In trained GPT-2 the group of perfectly aligned tokens disappears with inherited scores.",
     _VIOLINS[:1], "cosine_aligned", "gone"),
    ("hopfield-fig5-12-trained", "Appendix H, Figures 5 to 12",
     "In trained ViT of every size the group of perfectly aligned tokens disappears with inherited scores.",
     _VIOLINS[1:], "cosine_aligned", "gone"),
    ("hopfield-fig2-rank", "Main text, Figure 2's caption, on the abstract page",
     "In trained networks inherited scores keep the rank of the features from dropping (here: a larger residual "
     "ratio in "
     "the last layer).",
     _VIOLINS, "residual_ratio", "higher"),
    ("hopfield-abstract-hidden-trained", "Abstract",
     "In trained networks the hidden states, without the skip alpha, reduce token uniformity.",
     _VIOLINS, "cosine_aligned", "lower", HIDDEN_ONLY),
    ("hopfield-fig13-20-trained", "Appendix I, Figures 13 to 20",
     "Inherited scores leave the attention entropy of trained ViT as it is.",
     ["hopfield-entropy-vit"], "entropy_mean", "alike"),
]  # fmt: skip
for _row in _ROWS:
    _trained(*_row)
