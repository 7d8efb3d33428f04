"""Appendices H and I: what collapse means, and what the printed numbers of Figures 4 and 6 show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from uncollapse.metrics import cosine_pairs, entropy, residual_ratio, stable_rank
from uncollapse.metrics.similarity import ALIGNED
from uncollapse.theory import generator

from ...audit.claim import ROUNDING, AuditRun, Evidence, Plot, becomes, claim, judge
from ...printed import (
    FIG_4_MEDIAN_ATTENTION,
    FIG_4_MEDIAN_HOPFIELD,
    FIG_4_MODE_ATTENTION,
    FIG_4_MODE_HOPFIELD,
    FIG_6_MODE_HOPFIELD,
)


def _signed(random: torch.Generator) -> Tensor:
    return torch.randn(8, 1, dtype=torch.float64, generator=random)


@claim(
    "hopfield-H-rank-one-cosine",
    "Appendix H",
    "Rank collapse, all tokens proportional to one vector, means that every pair of tokens has cosine similarity 1.",
    corrected="Proportional tokens have cosine 1 or -1; it is 1 for all pairs where the factors have one sign, as for "
    "Dong's equal tokens.",
    consequence="Look at a rank as well as at cosines; `diagnose` reports both, and cosines of centred tokens.",
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


def _one_key(tokens: int) -> Tensor:
    weights = torch.zeros(tokens, tokens, dtype=torch.float64)
    weights[:, 0] = 1.0
    return weights


@claim(
    "hopfield-I-exclusive",
    "Appendix I",
    "Rank collapse and entropy collapse seem to exclude each other.",
    corrected="They can happen together: attention of every query to the same single key has entropy 0 and leaves "
    "equal tokens. The same paragraph goes on to quote the second paper for this, and nothing is built on it.",
    consequence="Test for both; a low entropy does not protect the rank.",
    mutation=becomes("holds", "every query looks at itself", weights=lambda tokens: torch.eye(tokens).double()),
)
def exclusive(run: AuditRun, weights: Callable[[int], Tensor] = _one_key) -> Evidence:
    """All queries look at the first key.

    Holds if not both are below 1e-9.
    """
    tokens = torch.randn(6, 4, dtype=torch.float64, generator=generator(run.seed))
    attention = weights(6)
    spread, ratio = entropy(attention).mean().item(), residual_ratio(attention @ tokens).item()
    return Evidence(
        judge(not (spread < ROUNDING and ratio < ROUNDING)),
        f"Entropy {spread:.2g} and residual ratio {ratio:.2g} of one and the same attention.",
        {"entropy": spread, "residual ratio": ratio},
    )


@claim(
    "hopfield-fig6-peak",
    "Appendix H, Figure 6, printed numbers",
    "In ViT-S with alpha = 0.5 the mode of the cosine similarity at 1 disappears from every layer.",
    consequence="Read off the print; one run, and no other initialisation to compare with.",
    mutation=becomes("fails", "the modes printed for self-attention", modes=FIG_4_MODE_ATTENTION),
    changes={"modes": FIG_6_MODE_HOPFIELD},
)
@claim(
    "hopfield-fig4-peak",
    "Appendix H, Figure 4, printed numbers",
    "In GPT-2 medium with Modern Hopfield Attention the mode of the cosine similarity at 1 disappears from every "
    "layer.",
    consequence="Read off the print; one run. Whether it comes again is hopfield-fig4-trained.",
    mutation=becomes("fails", "the modes printed for self-attention", modes=FIG_4_MODE_ATTENTION),
    changes={"modes": FIG_4_MODE_HOPFIELD},
)
def peak(run: AuditRun, modes: Sequence[float]) -> Evidence:
    """The printed modes.

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
    "Main text, Figure 1b's caption; Appendix H, Figure 4, printed numbers",
    "With Modern Hopfield Attention the cosine similarity between tokens of GPT-2 is kept low.",
    corrected="The peak at 1 goes; the typical similarity does not fall. The printed medians are higher with inherited "
    "scores in most layers.",
    survives=False,
    consequence="Judge uniformity by the share of aligned pairs and by a rank, not by the mode alone.",
    mutation=becomes("holds", "the two networks' medians exchanged", exchanged=True),
)
def kept_low(run: AuditRun, exchanged: bool = False) -> Evidence:
    """The printed medians, layer by layer; their sizes, since signs are faint in the scan.

    Holds if their mean is lower with inherited scores and they are lower in most layers. Read off a scan of the print.
    """
    ours, plain = np.abs(FIG_4_MEDIAN_HOPFIELD), np.abs(FIG_4_MEDIAN_ATTENTION)
    if exchanged:
        ours, plain = plain, ours
    lower = int((ours < plain).sum())
    rows = [(n, float(v), name) for name, values in (("inherited scores", ours), ("self-attention", plain))
            for n, v in enumerate(values, start=1)]  # fmt: skip
    return Evidence(
        judge(ours.mean() < plain.mean() and lower > len(ours) / 2),
        f"The mean of the 24 printed medians is {ours.mean():.3f} with inherited scores and {plain.mean():.3f} "
        f"without; they are lower in {lower} of 24 layers. Read off a scan of the figure.",
        {
            "mean median, inherited": float(ours.mean()),
            "mean median, attention": float(plain.mean()),
            "lower in": lower,
        },
        Plot("layer", "median cosine (printed)", rows),
    )
