"""Statements that an earlier version of the audit judged and this one does not, each with the reason."""

from __future__ import annotations

WITHDRAWN: dict[str, str] = {  # by the former id of the claim
    "hopfield-I-exclusive": 'The text says that the two kinds of collapse "seem to be mutually exclusive" and takes it '
    "back in the next sentence.",
    "hopfield-F3-feedforward": 'The text says that the case "cannot be naturally interpreted as a feedforward neural '
    'network as it is", which is a choice, not an error; that it is a linear solve is a remark at '
    "`hopfield-eq55-57-mixed`.",
    "hopfield-references": "It compared typed-in numbers of references with typed-in names, and the correction was "
    "doubtful.",
    "localization-B2-sharp": "The paper gives upper bounds, O(.), and the claim read them as sharp orders; the "
    "measured orders are part of `localization-eq4-dominates`.",
    "localization-fig5-scale": "Merged with `localization-A2-entropy`, which quotes the same comparison.",
    "localization-fig6-scale, fig8-scale to fig12-scale": "Six instances of one closed form, which rests on how the "
    "loss is normalised; merged into `localization-kappa2-scale`.",
}
