"""Appendices H and I: what collapse means, and what the printed numbers of Figures 4 and 6 show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from uncollapse.metrics import cosine_pairs, stable_rank
from uncollapse.metrics.similarity import ALIGNED
from uncollapse.theory import generator

from ...audit.claim import ROUNDING, SCALE, AuditRun, Evidence, becomes, judge
from ...printed import (
    FIG_4_MEDIAN_ATTENTION,
    FIG_4_MEDIAN_HOPFIELD,
    FIG_4_MODE_ATTENTION,
    FIG_4_MODE_HOPFIELD,
    FIG_6_MODE_HOPFIELD,
)
from .sources import claim


def _signed(random: torch.Generator) -> Tensor:
    return torch.randn(8, 1, dtype=torch.float64, generator=random)


@claim(
    "hopfield-H-rank-one-cosine",
    "Appendix H",
    "Rank collapse, all tokens proportional to one vector, means that every pair of tokens has cosine similarity 1.",
    corrected="Proportional tokens have cosine 1 or -1; it is 1 for all pairs where the factors have one sign, as for "
    "Dong's equal tokens.",
    consequence="Look at a rank as well as at cosines; `diagnose` reports both, and cosines of centred tokens.",
    no_perturbation="It is about the sign of a cosine.",
    changes_our_mind="A definition of proportional that allows positive factors only.",
    mutation=becomes("holds", "positive factors", factors=lambda random: _signed(random).abs()),
)
def rank_one(run: AuditRun, factors: Callable[[torch.Generator], Tensor] = _signed) -> Evidence:
    """Tokens c_i x with random c.

    Holds if every cosine is 1 to 1e-9; under a condition if it is for equal tokens.
    """
    random = generator(run.seed)
    direction = torch.randn(1, 6, dtype=torch.float64, generator=random)
    signed = cosine_pairs(factors(random) * direction)
    equal = cosine_pairs(torch.ones(8, 1, dtype=torch.float64) * direction)
    low = signed.min().item()
    return Evidence(
        judge(low > 1 - ROUNDING, equal.min().item() > 1 - ROUNDING),
        f"Tokens of rank one have cosines down to {low:.2f}; equal tokens have {equal.min().item():.2f}.",
        {"smallest cosine, proportional": low, "smallest cosine, equal": equal.min().item()},
    )


@claim(
    "hopfield-H-partial-collapse",
    "Appendix H",
    "A group of perfectly aligned tokens lowers the rank of the features: partial rank collapse.",
    consequence="True of cosine 1 exactly. Cosines near 1 leave the rank as it is, so a peak in a histogram is not "
    "proof.",
    no_perturbation="It is about a rank, a whole number.",
    changes_our_mind="Aligned tokens that leave the rank as it is.",
    mutation=becomes("fails", "tokens with cosine 0.999", noise=0.02),
)
def partial(run: AuditRun, noise: float = 0.0) -> Evidence:
    """Half of the tokens are multiples of one vector, up to noise.

    Holds if the rank is below the number of tokens.
    """
    random = generator(run.seed)
    x = torch.randn(10, 16, dtype=torch.float64, generator=random)
    x[:5] = x[0] * torch.linspace(1.0, 2.0, 5, dtype=torch.float64)[:, None] + noise * x[:5]
    rank = int(torch.linalg.matrix_rank(x))
    lowest = cosine_pairs(x[:5]).min().item()
    return Evidence(
        judge(rank < 10),
        f"Ten tokens of which five have cosines of at least {lowest:.4f} have rank {rank}, stable rank "
        f"{stable_rank(x).item():.2f}.",
        {"rank": rank, "smallest cosine in the group": lowest, "stable rank": stable_rank(x).item()},
    )


@claim(
    "hopfield-fig6-peak",
    "Appendix H, Figure 6, printed numbers",
    "In ViT-S with alpha = 0.5 the mode of the cosine similarity at 1 disappears from every layer.",
    consequence="Read off the print; one run, and no other initialisation to compare with.",
    no_perturbation="The modes are typed in; none is within 20 % of 1.",
    changes_our_mind="An error in reading the labels of the figure.",
    mutation=becomes("fails", "the modes printed for self-attention", modes=FIG_4_MODE_ATTENTION),
    changes={"modes": FIG_6_MODE_HOPFIELD},
)
@claim(
    "hopfield-fig4-peak",
    "Appendix H, Figure 4, printed numbers",
    "In GPT-2 medium with Modern Hopfield Attention the mode of the cosine similarity at 1 disappears from every "
    "layer.",
    consequence="Read off the print; one run. Whether it comes again is hopfield-fig4-trained.",
    no_perturbation="The modes are typed in; none is within 20 % of 1.",
    changes_our_mind="An error in reading the labels of the figure.",
    mutation=becomes("fails", "the modes printed for self-attention", modes=FIG_4_MODE_ATTENTION),
    changes={"modes": FIG_4_MODE_HOPFIELD},
)
def peak(run: AuditRun, modes: Sequence[float]) -> Evidence:
    """The printed modes, typed in.

    Holds if none is above 0.99 in size. Read off the print, not computed from a network.
    """
    at_one = sum(abs(mode) > ALIGNED for mode in modes)
    return Evidence(
        judge(at_one == 0),
        f"{at_one} of {len(modes)} printed modes are at 1; the largest is {max(abs(mode) for mode in modes):.2f} in "
        "size.",
        {"layers": len(modes), "modes at 1": at_one, "largest mode in size": max(abs(mode) for mode in modes)},
    )


@claim(
    "hopfield-fig1b-kept-low",
    "Figure 1b's caption, on the abstract page; Appendix H, Figure 4, labels of layers 12 and 24",
    "In layers 12 and 24 of GPT-2 medium with Modern Hopfield Attention the cosine similarity is kept low.",
    no_perturbation="Four labels read off a scan; they disagree in sign, not by 20 %.",
    changes_our_mind="The distributions themselves, which the figure shows and the labels do not give.",
    consequence="The peak at 1 goes (hopfield-fig4-peak); whether the typical similarity falls cannot be judged from "
    "the labels. Look at the share of aligned pairs and at a rank.",
    mutation=becomes("holds", "layer 12 alone", layers=(12,)),
)
def kept_low(run: AuditRun, layers: Sequence[int] = (12, 24)) -> Evidence:
    """The medians beside the violins of the two layers, read off a scan and typed in.

    Holds if they are lower with inherited scores in both layers and fails if in neither. It cannot be checked if the
    two layers disagree.
    """
    pairs = {n: (abs(FIG_4_MEDIAN_HOPFIELD[n - 1]), abs(FIG_4_MEDIAN_ATTENTION[n - 1])) for n in layers}
    lower = [ours < plain for ours, plain in pairs.values()]
    return Evidence(
        SCALE if any(lower) and not all(lower) else judge(all(lower)),
        "The printed median is "
        + ", ".join(f"{ours:.2f} against {plain:.2f} in layer {n}" for n, (ours, plain) in pairs.items())
        + ", with inherited scores against without. The labels do not say how the distributions differ.",
        {f"median, layer {n}": f"{ours:.2f} against {plain:.2f}" for n, (ours, plain) in pairs.items()},
    )
