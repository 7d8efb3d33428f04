"""Roots: what is wrong once, however many statements fail because of it.

Statements that fail for one reason share a root, and the headline counts roots, not statements. Only the first two
kinds are faults of substance. Entries of the last three kinds never count as failures of a paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

RootKind = Literal["repairable", "conclusion", "misprint", "reading", "not-a-statement", "trained"]
KINDS: tuple[RootKind, ...] = get_args(RootKind)
SUBSTANTIVE: tuple[RootKind, ...] = ("repairable", "conclusion")
COUNTED: tuple[RootKind, ...] = (*SUBSTANTIVE, "misprint")  # kinds whose statements may count as failing

KIND_TITLES: dict[RootKind, str] = {
    "repairable": "of substance, and the conclusion stands once it is repaired",
    "conclusion": "of substance, and a conclusion of the paper rests on it",
    "misprint": "misprints and wording",
    "reading": "dependent on a reading of the text",
    "not-a-statement": "not the papers' own statements",
    "trained": "about small trained networks",
}


@dataclass(frozen=True)
class Root:
    """One thing that is wrong, or open, behind one or more statements."""

    id: str
    kind: RootKind
    title: str

    @property
    def counts(self) -> bool:
        """Whether its statements may count as failures of the paper."""
        return self.kind in COUNTED


_HOPFIELD = (
    Root("hopfield-hoelder", "repairable", "Hölder's inequality (6) is that of row sums, and is used for column sums"),
    Root("hopfield-triangle", "repairable", "Composite norms of heads are added up, but have no triangle inequality"),
    Root("hopfield-sign-of-r", "repairable", "An inequality for P is multiplied by R, whose entries have both signs"),
    Root(
        "hopfield-d3-exponent",
        "repairable",
        "The exponent of the linear coefficient in Theorem D.3, where it is below 1",
    ),
    Root(
        "hopfield-alpha-hidden-decay",
        "conclusion",
        "The visible skip keeps tokens apart: hidden states alone slow the decay and do not stop it",
    ),
    Root("hopfield-scaled-twice", "misprint", "A stands for scaled and for unscaled scores: one 1/sqrt(d_k) too many"),
    Root("hopfield-d3-factor", "misprint", "4H in Theorem D.3 where its proof has 8H"),
    Root("hopfield-adiabatic-sign", "misprint", "A sign in the adiabatic limit, 0 = h + q K^T"),
    Root("hopfield-rho-one", "misprint", "At rho' = 1 the scores are those of the layer before, not 0"),
    Root("hopfield-central-sign", "misprint", "A sign in the central differences, Eq. 60 and 61"),
    Root("hopfield-closely", "reading", "How near a bound is that closely aligns"),
    Root("hopfield-ablation-base", "reading", "Which plain network the ablation is to be compared with"),
    Root("hopfield-summary", "reading", "Known from a summary of the main text only"),
    Root("hopfield-not-stated", "not-a-statement", "Not printed by the authors: implied, or added by others or by us"),
    Root("hopfield-trained", "trained", "Gains in networks far smaller than the paper's"),
)

_LOCALIZATION = (
    Root("localization-lemma1-variance", "repairable", "A factor lost in (B2) gives Lemma 1 the wrong variance"),
    Root("localization-lemma4-constants", "repairable", "Lemma 4's constants fit no start of the random walk"),
    Root("localization-cauchy-schwarz", "repairable", "A Cauchy-Schwarz inequality with four factors"),
    Root("localization-eq7-first", "repairable", "The spectral norm in Eq. 7 where the Frobenius norm is needed"),
    Root(
        "localization-trace-gradient", "repairable", "A factor tr(W_QK)/2 too much in the gradient of (tr(W_QK) - 1)^2"
    ),
    Root("localization-off-diagonal", "conclusion", "The off-diagonal entries of gamma are small and too many to drop"),
    Root(
        "localization-rho-not-attention", "conclusion", "Similar propagation probabilities do not mean equal attention"
    ),
    Root("localization-uniformity", "conclusion", "A zero trace does not make rho uniform"),
    Root("localization-dong-norm", "conclusion", "Dong's theorem bounds the residual from above, not from below"),
    Root(
        "localization-eq9", "conclusion", "Eq. 9 has e^(-nu/2) for the theorem's e^-nu, and so a peak that is not there"
    ),
    Root("localization-locater-mean", "conclusion", "LocAteR's two penalties trade off and do not keep the mean"),
    Root("localization-rows", "misprint", "Eq. 1 says rows for columns"),
    Root("localization-B1-lines", "misprint", "P is left out in two lines of B.1"),
    Root("localization-fig2-caption", "misprint", "The caption of Figure 2 has lambda^2 for lambda"),
    Root("localization-fig3-eta", "misprint", "The text on Figure 3 has eta = 0.02 for 0.01"),
    Root("localization-spectrum-words", "misprint", "Sums of eigenvalues are called mean and scale"),
    Root("localization-sec8", "misprint", "Section 8 says maximising for minimising"),
    Root("localization-kappa2-scale", "reading", "How strong kappa is depends on how the loss is normalised"),
    Root("localization-order-of-limits", "not-a-statement", "Whether Eq. 6 may be used at the T of a network"),
    Root("localization-fig3-width", "not-a-statement", "Whether the xi of Figure 3 exist at the experiments' width"),
    Root("localization-locater-regime", "not-a-statement", "Whether LocAteR reaches the localised regime of Lemma 2"),
    Root("localization-kappa-normalisation", "not-a-statement", "Whether the two kappas fix the penalty's strength"),
    Root("localization-trained-localisation", "not-a-statement", "Whether a stronger kappa_2 localises attention"),
    Root("localization-trained-entropy", "trained", "Entropy with a stronger kappa_2 in small networks"),
    Root("localization-trained-perplexity", "trained", "Perplexity with a stronger kappa_2 in small networks"),
    Root("localization-trained-propagation", "trained", "Propagation with and without LocAteR in small networks"),
    Root("localization-trained-phases", "trained", "Phases of learning in small networks"),
)

ROOTS: dict[str, Root] = {root.id: root for root in (*_HOPFIELD, *_LOCALIZATION)}
