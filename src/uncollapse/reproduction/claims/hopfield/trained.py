"""Statements of the first paper about trained networks: decided by cells of the reproduction, pending until then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cells import above_zero, below_zero, compare, made_up
from ..claim import HOLDS, Evidence, Mutation, Run, claim

PLAIN, OURS = "self-attention", "hopfield"
ALIKE = 0.25  # nats: entropies closer than that count as unchanged


def _within(low: float, high: float) -> bool:
    return low > -ALIKE and high < ALIKE


DIRECTIONS = {"lower": below_zero, "higher": above_zero, "alike": _within}


def _trained(
    id: str, place: str, statement: str, consequence: str, artefacts: Sequence[str], number: str, direction: str
) -> None:
    """Register a comparison of two methods in one number."""
    level = {"lower": 0.9, "higher": 1.1, "alike": 1.0}[direction]
    cells = made_up(artefacts[0].replace("*", "example"), number, {PLAIN: 10.0, OURS: 10.0 * level})

    def check(run: Run, against: str = PLAIN) -> Evidence:
        return compare(run, artefacts, number, OURS, against, DIRECTIONS[direction])

    claim(
        id,
        place,
        statement,
        consequence=consequence,
        mutation=Mutation("made-up cells that agree with it", HOLDS, cells=cells),
        artefacts=artefacts,
    )(check)


_NEXT = "Read the cells when they are in; until then this is open."
_ROWS: list[tuple[Any, ...]] = [
    ("hopfield-main-gpt2", "Main text, GPT-2",
     "Trained from scratch, GPT-2 with inherited scores has a lower perplexity.",
     ["hopfield-main-gpt2"], "perplexity", "lower"),
    ("hopfield-main-vit", "Main text, ViT", "Trained from scratch, ViT with inherited scores has a higher accuracy.",
     ["hopfield-main-vit"], "accuracy", "higher"),
    ("hopfield-probe", "Main text, linear probes", "Features of networks with inherited scores transfer better.",
     ["hopfield-probe"], "accuracy", "higher"),
    ("hopfield-ablation", "Main text, ablation", "Some alpha and alpha' improve ViT-T over the plain network.",
     ["hopfield-ablation"], "accuracy", "higher"),
    ("hopfield-skipfree", "Main text, networks without residual connections",
     "Without other residual connections, networks with inherited scores and the alpha-skip train better.",
     ["hopfield-skipfree"], "accuracy", "higher"),
    ("hopfield-fig4-trained", "Appendix H, Figure 4",
     "In trained GPT-2 the group of perfectly aligned tokens disappears with inherited scores.",
     ["hopfield-similarity-gpt2"], "cosine_aligned", "lower"),
    ("hopfield-fig5-12-trained", "Appendix H, Figures 5 to 12",
     "In trained ViT of every size the group of perfectly aligned tokens disappears with inherited scores.",
     ["hopfield-similarity-*"], "cosine_aligned", "lower"),
    ("hopfield-fig13-20-trained", "Appendix I, Figures 13 to 20",
     "Inherited scores leave the attention entropy of trained networks as it is.",
     ["hopfield-entropy-*"], "entropy_mean", "alike"),
]  # fmt: skip
for _id, _place, _statement, _artefacts, _number, _direction in _ROWS:
    _trained(_id, _place, _statement, _NEXT, _artefacts, _number, _direction)
