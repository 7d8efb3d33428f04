"""Sections 2 and 3: the attention layer, the piecewise-linear softmax, and what a token's propagation means."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from uncollapse.metrics import propagates, softmax_tangent
from uncollapse.theory import generator, piecewise_coefficients, piecewise_softmax, qk_matrix, random_walks

from ...audit.claim import ROUNDING, SIGNIFICANT, AuditRun, Evidence, Perturbation, Plot, becomes, judge, times
from .sources import claim


@claim(
    "localization-eq1-rows",
    "Section 2, Eq. 1 and 2",
    "The softmax of Eq. 1 is taken for each row, and Eq. 2 mixes tokens by the result: U = W_V X A.",
    corrected="For each column: tokens are columns here, and U = W_V X A mixes them by the columns of A. W_Q and "
    "W_K then change roles. Traces, norms and eigenvalues are unaffected.",
    consequence="Take the softmax over the keys of each query, as every library does.",
    root="localization-rows",
    changes_our_mind="An Eq. 2 that mixes tokens by the rows of A, U = W_V X A'.",
    no_perturbation="It names an axis and has no number.",
    mutation=becomes("holds", "columns", dim=0),
)
def softmax_axis(run: AuditRun, dim: int = 1) -> Evidence:
    """Mixing means weights that sum to one for each output token.

    Holds if every sum is 1 to 1e-9.
    """
    random = generator(run.seed)
    x, qk = (torch.randn(4, n, dtype=torch.float64, generator=random) for n in (7, 4))
    weights = (x.T @ qk @ x).softmax(dim=dim)
    sums = weights.sum(dim=0)  # of the weights of each output token
    error = (sums - 1.0).abs().max().item()
    return Evidence(
        judge(error < ROUNDING),
        f"The weights of an output token sum to {sums.min():.2f} to {sums.max():.2f}.",
        {"smallest sum": sums.min().item(), "largest sum": sums.max().item()},
    )


def _tangent(tokens: int) -> Tensor:
    return torch.eye(tokens, dtype=torch.float64) / tokens - 1.0 / tokens**2


@claim(
    "localization-taylor",
    "Section 2, Taylor coefficients",
    "At the origin the softmax has the value 1/T and the gradient e_i/T - 1/T^2.",
    consequence="`metrics.softmax_tangent` is this tangent.",
    changes_our_mind="A T for which autograd gives another tangent.",
    perturbation=Perturbation(lambda factor: {"slopes": times(factor, _tangent)}),
    mutation=becomes("fails", "without the 1/T^2", slopes=lambda tokens: torch.eye(tokens).double() / tokens),
)
def taylor(run: AuditRun, slopes: Callable[[int], Tensor] = _tangent) -> Evidence:
    """Against autograd.

    Holds if they agree to 1e-9.
    """
    tokens = 9
    zero = torch.zeros(tokens, dtype=torch.float64)
    exact: Tensor = torch.func.jacrev(lambda w: w.softmax(dim=-1))(zero)
    error = (exact - slopes(tokens)).abs().max().item()
    return Evidence(judge(error < ROUNDING), f"Gradient and formula differ by {error:.1e}.", {"difference": error})


def _clipped(scores: Tensor) -> Tensor:
    gamma, offset = piecewise_coefficients(scores)
    return (gamma.mT @ scores.unsqueeze(-1)).squeeze(-1) + offset


@claim(
    "localization-piecewise-form",
    "Section 2, vector form of the approximation, and Remark 1",
    "The clipped tangent is Gamma^T w + gamma_0 with coefficients that depend on w through the three cases.",
    consequence="`piecewise_coefficients` returns them; with the Taylor coefficients alone the form would be wrong.",
    changes_our_mind="Scores for which the form and the clipped tangent differ.",
    perturbation=Perturbation(lambda factor: {"form": times(factor, _clipped)}),
    mutation=becomes("fails", "Taylor coefficients that do not depend on w", form=softmax_tangent),
)
def piecewise_form(run: AuditRun, form: Callable[[Tensor], Tensor] = _clipped) -> Evidence:
    """Random scores from small to large.

    Holds if they agree to 1e-9.
    """
    random = generator(run.seed)
    scores = torch.randn(200, 8, dtype=torch.float64, generator=random) * torch.logspace(-2, 2, 200).double()[:, None]
    error = (form(scores) - piecewise_softmax(scores)).abs().max().item()
    return Evidence(
        judge(error < ROUNDING), f"Form and clipped tangent differ by {error:.1e}.", {"largest difference": error}
    )


@claim(
    "localization-piecewise-approximates",
    "Section 2, Figure 1",
    "The clipped tangent approximates the softmax.",
    corrected="It does for scores much smaller than 1. Scores of the paper's own model grow like T, and there the "
    "clipped tangent is not even a probability vector: take propagation as a definition.",
    consequence="A token's propagation says nothing about the attention that it gets.",
    changes_our_mind="Another measure of nearness than the sum of the weights, or scores that stay far below 1 as T "
    "grows.",
    no_perturbation="How near an approximation has to be is our number, and the sums found are far from it on either "
    "side.",
    mutation=becomes("holds", "eta = 0.0001 only", sizes=(1e-4,)),
    monte_carlo=True,
)
def approximates(run: AuditRun, sizes: tuple[float, ...] = (1e-4, 0.3, 1.0, 2.0)) -> Evidence:
    """The sum of the clipped tangent over the tokens, for random walks with a traceless W_QK of size eta.

    Holds if the mean sum is within 0.05 of 1 at every eta; under a condition if at some.
    """
    tokens, width, walks = run.pick(400, 100), 32, run.pick(400, 60)
    random = generator(run.seed)
    numbers: dict[str, float | int | str] = {}
    good, worst = [], 0.0
    spread = torch.randn(width, dtype=torch.float64, generator=random)
    spread = (spread - spread.mean()) / (spread - spread.mean()).norm()
    walk = random_walks(walks, tokens, width, random)
    for eta in sizes:
        scores = (walk * spread) @ walk[:, -1].unsqueeze(-1) * eta
        sums = piecewise_softmax(scores.squeeze(-1)).sum(dim=-1)
        good.append(abs(sums.mean().item() - 1.0) < 0.05)
        worst = max(worst, sums.std().item() / math.sqrt(walks))
        numbers[f"sum of the weights, eta = {eta:g}"] = sums.mean().item()
    return Evidence(
        judge(all(good), any(good)),
        f"Weights that should sum to 1 sum to {float(list(numbers.values())[-1]):.3g} at the largest scores, over "
        f"{tokens} tokens (standard error {worst:.2g}).",
        numbers,
        standard_error=worst,
    )


@claim(
    "localization-remark2-selector",
    "Section 2, Remark 2",
    "For large T the coefficient vector gamma^i = e_i/T + o(1) behaves like a selector of the i-th input.",
    corrected="1/T is itself o(1), so that the remark does not tell the two parts apart. The mean of the scores "
    "that gamma^i also subtracts is of the size of the i-th score: the variance is "
    "c(theta) = 2 theta^2 - 2 theta + 7/12, not theta^2 + theta.",
    survives=False,
    consequence="Do not drop the mean of the scores.",
    root="localization-off-diagonal",
    changes_our_mind="A sense of selector in which the mean over the other tokens may be of the size of the token "
    "itself.",
    perturbation=Perturbation(lambda factor: {"mean_weight": factor - 1.0}),
    mutation=becomes("holds", "a vector without the -1/T^2", mean_weight=0.0),
)
def selector(run: AuditRun, mean_weight: float = 1.0) -> Evidence:
    """The variance of w_i - mean(w) over that of w_i alone, at large T: Cov(w_i, w_j) is T min(i, j) + i j.

    Holds if the ratio is within 0.01 of 1 at four positions.
    """
    tokens = 800
    theta = np.array([0.25, 0.5, 0.75, 1.0])
    i = np.arange(1, tokens + 1, dtype=np.float64)
    cov = tokens * np.minimum.outer(i, i) + np.outer(i, i)
    alone = np.diag(cov)
    full = alone - mean_weight * 2.0 * cov.mean(axis=1) + mean_weight**2 * cov.mean()
    ratio = (full / alone)[(theta * tokens).astype(int) - 1]
    return Evidence(
        judge(bool(np.abs(ratio - 1.0).max() < 0.01)),
        f"At T = {tokens} the variance is {ratio.min():.2f} to {ratio.max():.2f} times that of the i-th score alone.",
        {f"ratio at theta = {t:g}": float(r) for t, r in zip(theta, ratio, strict=True)},
    )


@claim(
    "localization-signal-needed",
    "Section 3, uniform against localised softmax",
    "A token whose entry is clipped is hindered from contributing to the self-attention layer.",
    corrected="A token clipped at 0 is; a token clipped at 1 contributes with the largest weight there is, and through "
    "gamma_0 to the gradient (Eq. 20). What stops is the dependence of its weight on the scores.",
    consequence="Low propagation covers two opposite cases: ignored, and fully attended.",
    changes_our_mind="A definition of contributing by which a token with the largest weight does not.",
    no_perturbation="It tells two cases apart and has no number.",
    mutation=becomes("holds", "tokens clipped at 0 only", above=False),
)
def contributes(run: AuditRun, above: bool = True) -> Evidence:
    """How much the output moves with the value of a clipped token.

    Holds if no clipped token has a weight; under a condition if those clipped at 0 have none.
    """
    scores = torch.tensor([[0.0, 0.0, 0.0, 30.0]], dtype=torch.float64)
    weights = piecewise_softmax(scores)[0]
    clipped = ~propagates(scores)[0]
    chosen = weights[clipped] if above else weights[clipped & (weights == 0.0)]
    largest = chosen.max().item()
    return Evidence(
        judge(largest == 0.0, bool((weights[clipped] == 0.0).any())),
        f"Of the clipped tokens the one with the largest weight has {largest:g}.",
        {"clipped tokens": int(clipped.sum()), "largest weight of a clipped token": largest},
    )


def _softmax(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


def _indicator(scores: Tensor) -> Tensor:
    passed = propagates(scores).double()
    return passed / passed.sum(dim=-1, keepdim=True).clamp(min=1.0)


@claim(
    "localization-rho-is-attention",
    "Section 3, localised softmax",
    "Where only a few tokens have a propagation probability well above zero, self-attention is dominated by a small "
    "number of tokens.",
    corrected="True of the words, which do not say by which tokens; not true of those that propagate. In the paper's "
    "own simulation the softmax puts its mass on tokens that do not: the most attended entries are clipped at 1.",
    consequence="High propagation is not high attention. Look at attention itself.",
    changes_our_mind="A simulation under Assumption 1 in which the tokens with a high rho also get the attention.",
    no_perturbation="It states an order and no size; the share found is far from one half.",
    mutation=becomes("holds", "weights that are spread over the propagating tokens", weights=_indicator),
    monte_carlo=True,
)
def is_attention(run: AuditRun, weights: Callable[[Tensor], Tensor] = _softmax) -> Evidence:
    """Eigenvalues N(0.3, 0.1^2), d = 128, T = 40: attention mass of the last query on tokens with rho above 1/2.

    Holds if these tokens get more than half of it, by five standard errors; under a condition if as many others do.
    """
    width, tokens, walks = 128, 40, run.pick(2000, 200)
    random = generator(run.seed)
    matrix = qk_matrix(width, 0.3, 0.1, random)
    walk = random_walks(walks, tokens, width, random)
    scores = (walk @ matrix @ walk[:, -1].unsqueeze(-1)).squeeze(-1) / math.sqrt(width)
    rho = propagates(scores).double().mean(dim=0)
    mass = weights(scores)
    share = mass[:, rho > 0.5].sum(dim=-1)
    few = int((rho > 0.5).sum())
    most = mass.sort(dim=-1, descending=True).values[:, :few].sum(dim=-1).mean().item()
    error = share.std().item() / math.sqrt(walks)
    rows = [
        (n / tokens, value, name)
        for name, values in (("propagation", rho), ("attention", mass.mean(dim=0)))
        for n, value in enumerate(values.tolist(), start=1)
    ]
    return Evidence(
        judge(share.mean().item() - SIGNIFICANT * error > 0.5, most > 0.5),
        f"{few} of {tokens} tokens have a propagation above 1/2; together they get {share.mean():.2g} of the attention "
        f"(standard error {error:.1g}). The {few} tokens with the most get {most:.2g}.",
        {"tokens above 1/2": few, "their share of attention": share.mean().item(), "share of as many others": most},
        Plot("position", "probability", rows),
        standard_error=error,
    )
