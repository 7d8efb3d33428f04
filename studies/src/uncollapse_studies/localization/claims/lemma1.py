"""Section 4: mean and variance of Lemma 1, the Gaussian approximation, Eq. 5 and 6."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from uncollapse.metrics import propagates, softmax_tangent
from uncollapse.theory import (
    asymmetric_variance,
    generator,
    propagation_mean,
    propagation_probability,
    qk_matrix,
    qk_statistics,
    random_walks,
    signal_propagation,
    variance_factor,
)
from uncollapse.theory.form import Array

from ...audit.claim import ROUNDING, SIGNIFICANT, AuditRun, Evidence, Perturbation, Plot, becomes, judge, times
from ...figure import Size
from .sources import claim

TOKENS, WIDTH = 40, 32
Factor = Callable[[Array, int], Array]


@cache
def gates(size: Size, seed: int, asymmetric: bool = False) -> tuple[Tensor, Tensor]:
    """G of the last query for many walks (n, T), and the W_QK behind it; Sigma = I, temperature 1."""
    random = generator(seed)
    matrix = qk_matrix(WIDTH, 0.25, 0.1, random)  # a trace near 8, against which the terms of order 1/T are small
    if asymmetric:
        matrix = torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=random) / WIDTH
    return torch.cat(_gate_parts(size, matrix, random)), matrix


def _gate_parts(size: Size, matrix: Tensor, random: torch.Generator) -> list[Tensor]:
    parts = []
    for _ in range(10 if size == "full" else 2):
        walk = random_walks(4000, TOKENS, WIDTH, random)
        parts.append(softmax_tangent((walk @ matrix @ walk[:, -1].unsqueeze(-1)).squeeze(-1)))
    return parts


def _variance(g: Tensor) -> tuple[Array, Array]:
    """Sample variance of each position and its standard error."""
    error = ((g - g.mean(dim=0)) ** 2).std(dim=0) / len(g) ** 0.5
    return g.var(dim=0).numpy(), error.numpy()


def _positions() -> Array:
    return np.arange(1, TOKENS + 1) / TOKENS


def _stated_mean(theta: Array, r: float) -> Array:
    return propagation_mean(theta, r, 1.0)


@claim(
    "localization-lemma1-mean",
    "Section 4 and Appendix C, Lemma 1, mean",
    "The mean of the i-th entry is (i/T - 1/2) tr(W)/lambda + o(1).",
    consequence="Right; exactly (i/T - 1/2 - 1/(2T)) tr(W)/lambda + 1/T, which `propagation_mean(tokens=T)` uses.",
    changes_our_mind="Walks whose mean lies outside the o(1) allowance by five standard errors.",
    perturbation=Perturbation(lambda factor: {"mean": times(factor, _stated_mean)}),
    mutation=becomes("fails", "(i/T) tr(W)/lambda", mean=lambda theta, r: theta * r),
    monte_carlo=True,
)
def lemma_1_mean(run: AuditRun, mean: Callable[[Array, float], Array] = _stated_mean) -> Evidence:
    """Walks against it, up to the o(1) terms 1/T and tr(W)/(2 lambda T).

    Holds if it is within five standard errors plus (1 + |tr W|/lambda)/T, taken for o(1), everywhere.
    """
    g, matrix = gates(run.size, run.seed)
    r, theta = matrix.trace().item(), _positions()
    found, error = g.mean(dim=0).numpy(), (g.std(dim=0) / len(g) ** 0.5).numpy()
    allowed = SIGNIFICANT * error + (1.0 + abs(r)) / TOKENS
    off = np.abs(found - mean(theta, r))
    return Evidence(
        judge(bool((off < allowed).all())),
        f"Over {len(g):,} walks of {TOKENS} tokens, with tr(W)/lambda = {r:.2f}, the mean differs from it by at most "
        f"{off.max():.3f}; {(1 + abs(r)) / TOKENS:.3f} is allowed for o(1).",
        {"largest difference": float(off.max()), "tr(W)/lambda": r, "standard error": float(error.max())},
        standard_error=float(error.max()),
    )


def _printed(theta: Array, tokens: int) -> Array:
    return variance_factor(theta, "as_printed")


def _corrected(theta: Array, tokens: int) -> Array:
    return variance_factor(theta, tokens=tokens)


def _limit(theta: Array, tokens: int) -> Array:
    return variance_factor(theta)


@claim(
    "localization-lemma1-variance",
    "Section 4 and Appendix C, Lemma 1, variance",
    "The variance of the i-th entry is (2 i^2/T^2 + 7/12) tr(W^2)/lambda^2 + o(1).",
    corrected="(2 theta^2 - 2 theta + 7/12) tr(W^2)/lambda^2 with theta = i/T; exactly for every T, + (1 - 2 "
    "theta)/T + 5/(12 T^2) in the bracket. The proof's (B2) has T^2 i for 3 T^2 i.",
    consequence="The variance is smallest in the middle, 13 times smaller than printed there, and symmetric about it.",
    root="localization-lemma1-variance",
    changes_our_mind="A T from which the exact sum over Cov(a_i, a_j) comes within 3/(2T) of the printed factor.",
    perturbation=Perturbation(lambda factor: {"factor": times(factor, _limit)}),
    mutation=becomes("holds", "the corrected factor", factor=_corrected),
    monte_carlo=True,
)
def lemma_1_variance(run: AuditRun, factor: Factor = _printed) -> Evidence:
    """Walks, and the exact sum over Cov(a_i, a_j) = T min(i,j) + i j.

    Holds if it is within five standard errors plus 3/(2T), taken for o(1), of the sample everywhere, and within
    3/(2T) of the exact sum at T = 400.
    """
    g, matrix = gates(run.size, run.seed)
    theta, square = _positions(), (matrix * matrix.T).sum().item()
    found = g.var(dim=0).numpy() / square
    centred = g - g.mean(dim=0)
    error = ((centred**2).std(dim=0) / len(g) ** 0.5).numpy() / square
    stated = factor(theta, TOKENS)
    off = np.abs(found - stated)
    within = bool((off < SIGNIFICANT * error + 1.5 / TOKENS).all())
    rows = [
        (float(t), float(v), name)
        for name, values in (("sampled", found), ("stated", stated))
        for t, v in zip(theta[::2], values[::2], strict=True)
    ]
    middle = TOKENS // 2 - 1
    return Evidence(
        judge(within and _exact_gap(factor) < 1.5 / 400),
        f"Over {len(g):,} walks the variance at the middle is {found[middle]:.4f} tr(W^2)/lambda^2 (standard error "
        f"{error[middle]:.4f}), the stated one {stated[middle]:.4f}: a factor of {stated[middle] / found[middle]:.1f}.",
        {
            "sampled, theta = 1/2": float(found[middle]),
            "stated, theta = 1/2": float(stated[middle]),
            "largest difference from the sample": float(off.max()),
            "distance from the exact sum, T = 400": _exact_gap(factor),
        },
        Plot("position", "variance factor", rows),
        standard_error=float(error[middle]),
    )


def _exact_gap(factor: Factor, tokens: int = 400) -> float:
    """How far a factor is from the exact sum, over all positions."""
    i = np.arange(1, tokens + 1, dtype=np.float64)
    cov = tokens * np.minimum.outer(i, i) + np.outer(i, i)
    exact = np.diag(cov) / tokens**2 - 2.0 * cov.sum(axis=1) / tokens**3 + cov.sum() / tokens**4
    return float(np.abs(exact - factor(i / tokens, tokens)).max())


def _symmetrised(theta: Array, matrix: Tensor) -> Array:
    half = (matrix + matrix.T) / 2
    square = (half * half.T).sum().item()
    return asymmetric_variance(theta, square, square, 1.0, TOKENS)


def _asymmetric(theta: Array, matrix: Tensor) -> Array:
    return asymmetric_variance(theta, (matrix * matrix).sum().item(), (matrix * matrix.T).sum().item(), 1.0, TOKENS)


@claim(
    "localization-lemma1-symmetrise",
    "Section 4, after Lemma 1",
    "For an asymmetric W_QK the propagation probability can be redefined with the symmetrised matrix.",
    corrected="As a definition, yes: it is right for a layer that uses the symmetrised matrix. The entries of the "
    "layer "
    "itself have another variance. For any M: v = [(theta^2 - theta + 1/3) tr(M Sigma M' Sigma) + (theta - "
    "1/2)^2 tr(M Sigma M Sigma)]/lambda^2 (`asymmetric_variance`).",
    consequence="Trained W_QK are asymmetric; symmetrising a random one understates the variance by about one half.",
    changes_our_mind="An asymmetric W_QK, not nearly symmetric, whose entries have the variance of the symmetrised "
    "one.",
    perturbation=Perturbation(lambda factor: {"variance": times(factor, _asymmetric)}),
    mutation=becomes("holds", "the variance for any matrix", variance=_asymmetric),
    monte_carlo=True,
)
def symmetrise(run: AuditRun, variance: Callable[[Array, Tensor], Array] = _symmetrised) -> Evidence:
    """A Gaussian matrix without symmetry: the variance of the layer's own entries against that of the redefined ones.

    Holds if they are within five standard errors everywhere; under a condition if the redefined variance is that of a
    layer with the symmetrised matrix.
    """
    g, matrix = gates(run.size, run.seed, asymmetric=True)
    found, error = _variance(g)
    stated = variance(_positions(), matrix)
    z, middle = np.abs(found - stated) / error, TOKENS // 2 - 1
    half = (matrix + matrix.T) / 2
    own, own_error = _variance(torch.cat(_gate_parts(run.size, half, generator(run.seed + 1))))
    as_defined = np.abs(own - _symmetrised(_positions(), half)) / own_error
    return Evidence(
        judge(bool(z.max() < SIGNIFICANT), bool(as_defined.max() < SIGNIFICANT)),
        f"At the middle the sampled variance is {found[middle]:.3g} (standard error {error[middle]:.2g}), the stated "
        f"one {stated[middle]:.3g}; in a layer with the symmetrised matrix it is {own[middle]:.3g}.",
        {
            "sampled": float(found[middle]),
            "stated": float(stated[middle]),
            "sampled, symmetrised layer": float(own[middle]),
            "standard errors apart": float(z.max()),
        },
        standard_error=float(error[middle]),
    )


@claim(
    "localization-gaussian",
    "Section 4, Gaussian approximation",
    "The entry is approximately Gaussian, so that rho follows from its mean and variance by the error function.",
    corrected="Good for many comparable eigenvalues, poor for a W_QK of rank 1 to 4.",
    consequence="Do not use the closed form for low-rank heads; simulate.",
    changes_our_mind="Low-rank W_QK for which simulated and approximated rho agree to 0.03.",
    perturbation=Perturbation(lambda factor: {"ranks": (64,), "factor": factor}),
    mutation=becomes("holds", "rank 64 only", ranks=(64,)),
    monte_carlo=True,
)
def gaussian(run: AuditRun, ranks: tuple[int, ...] = (1, 4, 64), factor: float = 1.0) -> Evidence:
    """W_QK = (1.5/k) times a projection of rank k: simulated rho against the formula with exact mean and variance.

    Holds if rho is off by less than 0.03 plus five standard errors at every rank; under a condition if at some.
    """
    tokens, walks = 50, run.pick(20_000, 3_000)
    random, worst, rows = generator(run.seed), {}, []
    for rank in ranks:
        closed = factor * qk_statistics(np.eye(rank) * 1.5 / rank, temperature=1.0).propagation(tokens)
        count = np.zeros(tokens)
        for _ in range(10):
            walk = random_walks(walks // 10, tokens, rank, random)
            count += propagates((walk @ walk[:, -1].unsqueeze(-1)).squeeze(-1) * 1.5 / rank).sum(dim=0).numpy()
        found = count / walks
        worst[rank] = float(np.abs(found - closed).max())
        rows += [(n / tokens, v, f"rank {rank}") for n, v in enumerate(np.abs(found - closed).tolist(), start=1)]
    error = 0.5 / math.sqrt(walks)
    good = {rank: value < 0.03 + SIGNIFICANT * error for rank, value in worst.items()}
    return Evidence(
        judge(all(good.values()), any(good.values())),
        "Largest error of rho: "
        + ", ".join(f"{value:.3f} at rank {rank}" for rank, value in worst.items())
        + f" (standard error {error:.3f}).",
        {f"largest error, rank {rank}": value for rank, value in worst.items()},
        Plot("position", "error of rho", rows),
        standard_error=error,
    )


def _printed_trace(matrix: Array) -> float:
    return float(np.trace(matrix @ matrix))


@claim(
    "localization-eq5",
    "Section 4, Eq. 5",
    "|tr(W)| is at most sqrt(d tr(W^2)), for W = W_QK Sigma with a symmetric W_QK.",
    consequence="So |xi| <= sqrt(d): the limits of Lemma 2 need a growing width.",
    changes_our_mind="A symmetric W_QK and a covariance that break it.",
    perturbation=Perturbation(lambda factor: {"factor": factor}, factors=(0.8,)),
    mutation=becomes("fails", "an asymmetric W_QK", symmetric=False),
)
def eq_5(run: AuditRun, symmetric: bool = True, factor: float = 1.0) -> Evidence:
    """Random matrices and covariances, and the identity, which attains it.

    Holds if no matrix breaks it by more than 1e-9.
    """
    random, cases = np.random.default_rng(run.seed), run.pick(2000, 300)
    products = [np.eye(4)]
    for _ in range(cases):
        d = int(random.integers(2, 8))
        m, root = random.standard_normal((2, d, d))
        products.append(((m + m.T) / 2 if symmetric else m) @ (root @ root.T + 0.1 * np.eye(d)))
    bounds = [factor * math.sqrt(max(len(w) * _printed_trace(w), 0.0)) * (1 + ROUNDING) for w in products]
    broken = sum(abs(np.trace(w)) > bound for w, bound in zip(products, bounds, strict=True))
    return Evidence(
        judge(broken == 0),
        f"Broken by {broken} of {cases} random matrices and the identity.",
        {"cases": cases, "broken": int(broken)},
    )


def _eq_6_printed(theta: Array, xi: float, eta: float, tokens: int) -> Array:
    return signal_propagation(theta, xi, eta, "as_printed")


def _eq_6_exact(theta: Array, xi: float, eta: float, tokens: int) -> Array:
    return signal_propagation(theta, xi, eta, tokens=tokens)


Rho = Callable[[Array, float, float, int], Array]


@claim(
    "localization-eq6",
    "Section 4, Eq. 6",
    "rho(theta) = Phi((theta - 1/2) xi) - Phi((theta - 1/2) xi - 1/eta) with the variance factor of Lemma 1.",
    corrected="The same with 2 theta^2 - 2 theta + 7/12 under the root; then rho(theta; xi) = rho(1 - theta; -xi).",
    consequence="Use `signal_propagation(..., tokens=T)`; the printed curve is off by up to 0.4 in ordinary regimes.",
    root="localization-lemma1-variance",
    changes_our_mind="Spectra with many comparable eigenvalues for which the printed form fits simulated walks.",
    perturbation=Perturbation(lambda factor: {"rho": times(factor, _eq_6_exact)}),
    mutation=becomes("holds", "the corrected factor, exact for T", rho=_eq_6_exact),
    monte_carlo=True,
)
def eq_6(run: AuditRun, rho: Rho = _eq_6_printed) -> Evidence:
    """Walks with many comparable eigenvalues, where the Gaussian approximation is good.

    Holds if rho is off by less than 0.05 plus five standard errors.
    """
    tokens, width, walks = 40, 64, run.pick(8000, 1200)
    random, theta, worst, rows = generator(run.seed), np.arange(1, 41) / 40, 0.0, []
    for mean, scale in ((0.05, 0.02), (0.1, 0.1), (-0.1, 0.1)):
        matrix = qk_matrix(width, mean, scale, random)
        statistics = qk_statistics(matrix)
        scores = torch.cat([_last_scores(walks // 4, tokens, matrix, random) for _ in range(4)])
        found = propagates(scores).double().mean(dim=0).numpy()
        stated = rho(theta, statistics.xi, statistics.eta, tokens)
        worst = max(worst, float(np.abs(found - stated).max()))
        if mean > 0.05:
            rows += [(float(t), float(v), "simulated") for t, v in zip(theta, found, strict=True)]
            rows += [(float(t), float(v), "stated") for t, v in zip(theta, stated, strict=True)]
    error = 0.5 / math.sqrt(walks)
    return Evidence(
        judge(worst < 0.05 + SIGNIFICANT * error),
        f"Over three spectra the formula is off by up to {worst:.3f} (standard error of the simulation {error:.3f}).",
        {"largest error": worst, "walks": walks},
        Plot("position", "rho", rows),
        standard_error=error,
    )


def _last_scores(walks: int, tokens: int, matrix: Tensor, random: torch.Generator) -> Tensor:
    walk = random_walks(walks, tokens, len(matrix), random)
    return (walk @ matrix @ walk[:, -1].unsqueeze(-1)).squeeze(-1) / math.sqrt(len(matrix))


@claim(
    "localization-eq6-order-of-limits",
    "Section 4, Lemma 1's o(1) dropped in Eq. 6 (implied, not printed)",
    "For the numbers of tokens in use, the terms of order 1/T that Eq. 6 drops do not matter.",
    corrected="They matter unless eta and |xi eta| are large against 1/T. At a fixed T every token propagates as W "
    "goes to 0, where Eq. 6 says one half.",
    consequence="Pass `tokens=T`: regularised heads are in just that regime.",
    root="localization-order-of-limits",
    changes_our_mind="Numbers of tokens in use, and eta of trained heads, at which the dropped terms change rho by "
    "less than 0.02.",
    no_perturbation="It compares two forms of Eq. 6 and states no number.",
    mutation=becomes("holds", "eta = 2 only", etas=(2.0,)),
)
def order_of_limits(run: AuditRun, etas: tuple[float, ...] = (0.001, 0.01, 0.1, 2.0)) -> Evidence:
    """Corrected limit form against the exact form at T = 64, xi = 0.

    Holds if rho changes by less than 0.02 at every eta; under a condition if at some.
    """
    theta = np.arange(1, 65) / 64
    gaps = {
        eta: float(np.abs(signal_propagation(theta, 0.0, eta) - signal_propagation(theta, 0.0, eta, tokens=64)).max())
        for eta in etas
    }
    good = [gap < 0.02 for gap in gaps.values()]
    return Evidence(
        judge(all(good), any(good)),
        "Largest change by the dropped terms at T = 64: "
        + ", ".join(f"{g:.3f} at eta = {e:g}" for e, g in gaps.items())
        + ".",
        {f"eta = {eta:g}": gap for eta, gap in gaps.items()},
        Plot("eta", "largest change of rho", [(e, g, "change") for e, g in gaps.items()], log_x=True),
    )


def _erf(mean: float, variance: float) -> float:
    return 0.5 * (math.erf((1.0 - mean) / math.sqrt(2.0 * variance)) + math.erf(mean / math.sqrt(2.0 * variance)))


@claim(
    "localization-rho-erf",
    "Section 4, formula before Lemma 1",
    "For a Gaussian entry rho = [erf((1 - mu)/sqrt(2v)) + erf(mu/sqrt(2v))]/2.",
    consequence="Right; the library computes it so that no digits cancel in the tails.",
    changes_our_mind="A mean and a variance for which it differs from the normal distribution.",
    perturbation=Perturbation(lambda factor: {"formula": times(factor, _erf)}),
    mutation=becomes("fails", "sqrt(v) in place of sqrt(2v)", formula=lambda m, v: _erf(m, v / 2.0)),
)
def rho_erf(run: AuditRun, formula: Callable[[float, float], float] = _erf) -> Evidence:
    """Against the normal distribution function.

    Holds if they agree to 1e-9.
    """
    cases = [(m, v) for m in (-1.0, 0.0, 0.3, 0.5, 2.0) for v in (0.01, 0.1, 1.0)]
    error = max(abs(formula(m, v) - float(propagation_probability(m, v))) for m, v in cases)
    return Evidence(judge(error < ROUNDING), f"Largest difference {error:.1e}.", {"largest difference": error})
