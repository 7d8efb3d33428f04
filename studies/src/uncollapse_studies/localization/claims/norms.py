"""Section 5: the chains of norms and traces (Eq. 7, 8, 10) and what they are used for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from uncollapse.metrics import norm_1, norm_1_inf, residual
from uncollapse.theory import Link, chain_7, chain_10, eigenspectrum_variance, generator, random_walks
from uncollapse.theory.form import Array

from ...audit.claim import ROUNDING, SIGNIFICANT, AuditRun, Evidence, Perturbation, Plot, becomes, judge
from .sources import claim

WIDTH = 16  # of the tokens of `expressivity`, and their number
MatrixKind = str  # of the matrix M: "symmetric", "semidefinite" or "any"


def matrices(run: AuditRun, kind: MatrixKind, count: int) -> Iterator[tuple[Array, Array]]:
    """Pairs (M, Sigma); the identity and a matrix with one entry come first, since they attain the inequalities."""
    random = np.random.default_rng(run.seed)
    yield np.eye(4), np.eye(4)
    yield np.diag([1.0, 0.0, 0.0, 0.0]), np.eye(4)
    yield np.diag([1.0, 0.0, 0.0, 0.0]), np.diag([1.0, 1e3, 1e3, 1e3])
    for _ in range(count):
        d = int(random.integers(2, 10))
        m, factor = random.standard_normal((2, d, d))
        if kind == "symmetric":
            shape = random.integers(0, 3)  # any, traceless, semidefinite
            m = m @ m.T if shape == 2 else (m + m.T) / 2 - shape * np.trace(m) / d * np.eye(d)
        elif kind == "semidefinite":
            m = m @ m.T
        sigma = np.eye(d) if random.integers(0, 2) else factor @ factor.T + 0.1 * np.eye(d)
        yield m, sigma


Chain = Callable[[Array, Array], Link]


def _broken(run: AuditRun, kind: MatrixKind, link: Chain, factor: float = 1.0) -> tuple[int, int]:
    links = [link(m, sigma) for m, sigma in matrices(run, kind, run.pick(1500, 200))]
    links = [replace(own, larger=factor * own.larger) for own in links]
    return sum(not own.holds for own in links), len(links)


def _first_7(m: Array, sigma: Array) -> Link:
    return chain_7(m, sigma, "as_printed")[0]


def _first_7_frobenius(m: Array, sigma: Array) -> Link:
    return chain_7(m, sigma)[0]


def _third_7(m: Array, sigma: Array) -> Link:
    return chain_7(m, sigma, "as_printed")[2]


def _third_7_entries(m: Array, sigma: Array) -> Link:
    return chain_7(m, sigma, "as_printed", norm_1="entrywise")[2]


def _ends_10(m: Array, sigma: Array) -> Link:
    first, second = chain_10(m, sigma, "as_printed")
    return Link("||M||_2 <= ||Sigma^-1||_F sqrt(tr W^2)", second.smaller, first.larger)


def _quarter(m: Array, sigma: Array) -> Link:
    link = _ends_10(m, sigma)
    return Link("a quarter of the right side", link.smaller, link.larger / 4.0)


def _swapped(m: Array, sigma: Array) -> Link:
    link = chain_7(m, sigma, "as_printed")[1]
    return Link("||M||_F <= ||M||_2", link.larger, link.smaller)


@claim(
    "localization-eq10-ends",
    "Section 5, Eq. 10, its two ends",
    "||Sigma^-1||_F sqrt(tr(W^2)) is at least ||W_QK||_2.",
    consequence="This is all that the paper uses of Eq. 10, and it holds for a symmetric W_QK; sharper: "
    "||Sigma^-1||_2 in place of ||Sigma^-1||_F.",
    changes_our_mind="A symmetric W_QK and a covariance that break it.",
    perturbation=Perturbation(lambda factor: {"factor": factor}, factors=(0.8,)),
    mutation=becomes("fails", "a quarter of the left side", link=_quarter),
    changes={"link": _ends_10},
)
@claim(
    "localization-eq10-second",
    "Section 5, Eq. 10, second link",
    "|tr(W_QK)| is at least ||W_QK||_2.",
    corrected="For a semidefinite W_QK. Every traceless matrix breaks it; ||W_QK||_F >= ||W_QK||_2 does instead.",
    consequence="Small traces do not mean small weights. The chain's ends survive.",
    changes_our_mind="A condition of the paper that makes W_QK semidefinite.",
    perturbation=Perturbation(lambda factor: {"kind": "semidefinite", "factor": factor}, factors=(0.8,)),
    mutation=becomes("holds", "a positive semidefinite W_QK", kind="semidefinite"),
    changes={"link": lambda m, sigma: chain_10(m, sigma, "as_printed")[1], "better": "semidefinite"},
)
@claim(
    "localization-eq10-first",
    "Section 5, Eq. 10, first link",
    "||Sigma^-1||_F sqrt(tr(W^2)) is at least |tr(W_QK)|, for a symmetric W_QK.",
    consequence="Right by Cauchy-Schwarz. For an asymmetric W_QK tr(W^2) can be negative: use tr(M Sigma M' Sigma).",
    changes_our_mind="A symmetric W_QK and a covariance that break it.",
    perturbation=Perturbation(lambda factor: {"factor": factor}, factors=(0.8,)),
    mutation=becomes("fails", "an asymmetric W_QK", kind="any"),
    changes={"link": lambda m, sigma: chain_10(m, sigma, "as_printed")[0]},
)
@claim(
    "localization-eq7-third",
    "Section 5, Eq. 7, third link",
    "||W_QK||_F is at most ||W_QK||_1, the matrix l1-norm of Dong's theorem.",
    corrected="True of the sum of all entries; not of the operator norm, the largest column sum, which is Dong's. "
    "For that one ||W_QK||_2 <= sqrt(||W_QK||_1 ||W_QK||_inf).",
    consequence="Say which norm is meant; the chain from tr(W) to Dong's norm needs the corrected links.",
    changes_our_mind="A statement of Dong's theorem with the sum of all entries.",
    perturbation=Perturbation(lambda factor: {"link": _third_7_entries, "factor": factor}, factors=(0.8,)),
    mutation=becomes("holds", "the sum of all entries", link=_third_7_entries),
    changes={"link": _third_7, "rescue": _third_7_entries},
)
@claim(
    "localization-eq7-second",
    "Section 5, Eq. 7, second link",
    "||W_QK||_2 is at most ||W_QK||_F.",
    consequence="Always true.",
    changes_our_mind="A matrix that breaks it; there is none.",
    perturbation=Perturbation(lambda factor: {"factor": factor}, factors=(0.8,)),
    mutation=becomes("fails", "the two norms exchanged", link=_swapped),
    changes={"link": lambda m, sigma: chain_7(m, sigma, "as_printed")[1]},
)
@claim(
    "localization-eq7-first",
    "Section 5, Eq. 7, first link",
    "|tr(W)|/(sqrt(d) ||Sigma||_2) is at most ||W_QK||_2.",
    corrected="With ||W_QK||_F on the right, or with d in place of sqrt(d). As printed it is false for the identity, "
    "the spectrum that is concentrated most, and needs a rank of at most sqrt(d).",
    consequence="A large trace bounds the Frobenius norm, and the spectral norm by a factor sqrt(d) less.",
    root="localization-eq7-first",
    changes_our_mind="A condition of the paper that limits the rank of W_QK to sqrt(d).",
    perturbation=Perturbation(lambda factor: {"link": _first_7_frobenius, "factor": factor}, factors=(0.8,)),
    mutation=becomes("holds", "the Frobenius norm on the right", link=_first_7_frobenius),
    changes={"link": _first_7},
)
def chain(
    run: AuditRun,
    link: Chain,
    kind: MatrixKind = "symmetric",
    better: MatrixKind | None = None,
    rescue: Chain | None = None,
    factor: float = 1.0,
) -> Evidence:
    """Random matrices, with the identity and traceless ones among them.

    Holds if no matrix breaks it; under a condition if none of the class named does, which is one of the paper's own
    (a spectrum that concentrates away from zero is semidefinite), or in the reading named.
    """
    broken, cases = _broken(run, kind, link, factor)
    inside = better is not None and _broken(run, better, link)[0] == 0
    inside = inside or (rescue is not None and _broken(run, kind, rescue)[0] == 0)
    one = link(np.eye(4), np.eye(4))
    return Evidence(
        judge(broken == 0, inside),
        f"Broken by {broken} of {cases} {kind} matrices. At W_QK = Sigma = I (d = 4): {one.smaller:.3g} <= "
        f"{one.larger:.3g} is {'true' if one.holds else 'false'}."
        + (f" Among {better} ones none breaks it." if better and inside else ""),
        {"matrices": cases, "broken": broken, "left at the identity": one.smaller, "right at the identity": one.larger},
    )


@claim(
    "localization-eq8",
    "Section 5, Eq. 8",
    "d^2 times the variance of W's eigenvalues is d tr(W^2) - tr(W)^2, so a larger |tr(W)| at a fixed tr(W^2) is a "
    "smaller variance.",
    consequence="Right for a symmetric W_QK, whose W has real eigenvalues; `eigenspectrum_variance`.",
    changes_our_mind="A symmetric W_QK whose W has another variance.",
    perturbation=Perturbation(lambda factor: {"factor": factor}),
    mutation=becomes("fails", "an asymmetric W_QK, with complex eigenvalues", kind="any"),
)
def eq_8(run: AuditRun, kind: MatrixKind = "symmetric", factor: float = 1.0) -> Evidence:
    """Against the eigenvalues themselves.

    Holds if they agree to 1e-6.
    """
    worst = 0.0
    for m, sigma in matrices(run, kind, run.pick(500, 100)):
        values = np.linalg.eigvals(m @ sigma)
        spread = len(values) ** 2 * float(np.mean(np.abs(values - values.mean()) ** 2))
        worst = max(worst, abs(factor * eigenspectrum_variance(m, sigma) - spread) / max(1.0, spread))
    return Evidence(
        judge(worst < 1e-6), f"It differs from the eigenvalues' variance by at most {worst:.1e}.", {"largest": worst}
    )


@claim(
    "localization-norms-equivalent",
    "Section 5, rank against entropy collapse",
    "The matrix l1-norm and the spectral norm are equivalent norms.",
    consequence="Up to sqrt(d) either way, which is not nothing at d = 1024.",
    changes_our_mind="A matrix that breaks one of the two inequalities.",
    perturbation=Perturbation(lambda factor: {"constant": lambda width: factor * math.sqrt(width)}, factors=(0.8,)),
    mutation=becomes("fails", "with a constant of 1", constant=lambda width: 1.0),
)
def equivalent(run: AuditRun, constant: Callable[[int], float] = math.sqrt) -> Evidence:
    """||A||_2 <= sqrt(d) ||A||_1 and ||A||_1 <= sqrt(d) ||A||_2.

    Holds if no matrix breaks it by more than 1e-9.
    """
    broken = 0
    for m, _ in matrices(run, "any", run.pick(1000, 200)):
        one, two, c = float(np.linalg.norm(m, 1)), float(np.linalg.norm(m, 2)), constant(len(m))
        broken += two > c * one * (1 + ROUNDING) or one > c * two * (1 + ROUNDING)
    return Evidence(judge(broken == 0), f"Broken by {broken} random matrices.", {"broken": int(broken)})


def _one_way(random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens about a mean m, and W_QK = m m^T/|m|^2: every query prefers the same key."""
    tokens = torch.randn(12, WIDTH, dtype=torch.float64, generator=random)
    tokens = (tokens - tokens.mean(dim=0)) / 4.0 + 1.0
    mean = tokens.mean(dim=0)
    return tokens, torch.outer(mean, mean) / mean.norm() ** 2


def _own_way(random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens of length one, and W_QK = I: every query prefers itself."""
    tokens = torch.randn(12, WIDTH, dtype=torch.float64, generator=random)
    return tokens / tokens.norm(dim=1, keepdim=True), torch.eye(WIDTH, dtype=torch.float64)


@claim(
    "localization-dong-norm",
    "Section 5, connection to rank collapse",
    "Dong et al. proved that the convergence to rank one slows down when ||W_QK||_1 is large.",
    corrected="A larger norm loosens an upper bound; it need not slow the convergence. With W_QK along the mean "
    "token all queries turn to one key and the tokens collapse the faster the larger the norm.",
    survives=False,
    consequence="Do not enlarge W_QK in order to save the rank.",
    root="localization-dong-norm",
    changes_our_mind="A lower bound of the residual in Dong's theorem that grows with the norm; it has an upper bound "
    "only.",
    no_perturbation="It states a direction and no number.",
    mutation=becomes("holds", "W_QK = I with tokens of equal length", case=_own_way),
)
def dong_norm(run: AuditRun, case: Callable[[torch.Generator], tuple[Tensor, Tensor]] = _one_way) -> Evidence:
    """The residual after one layer of attention as W_QK is scaled up.

    Holds if more is left at the largest norm than at the smallest.
    """
    tokens, direction = case(generator(run.seed))
    sizes, rests = (1.0, 10.0, 100.0, 1000.0), []
    for size in sizes:
        mixed = (tokens @ (size * direction) @ tokens.T).softmax(dim=-1) @ tokens
        rests.append((norm_1_inf(residual(mixed)) / norm_1_inf(residual(tokens))).item())
    norms = [size * norm_1(direction).item() for size in sizes]
    return Evidence(
        judge(rests[-1] > rests[0]),
        f"As ||W_QK||_1 grows from {norms[0]:.2g} to {norms[-1]:.2g}, the share of the residual that one layer "
        f"leaves goes from {rests[0]:.2g} to {rests[-1]:.2g}.",
        {f"residual left, norm {n:.2g}": r for n, r in zip(norms, rests, strict=True)},
        Plot("norm of W_QK", "share of the residual left", [(n, max(r, 1e-17), "residual") for n, r in
             zip(norms, rests, strict=True)], log_x=True, log_y=True),
    )  # fmt: skip


@claim(
    "localization-A2-expressivity",
    "Section 5, summary A2, first item",
    "If |tr(W)| is maximised for a fixed tr(W^2), the convergence to rank collapse becomes slow.",
    corrected="It does on average where the tokens are isotropic. Where they are not, the maximum is W_QK = c "
    "Sigma^-1, "
    "and W_QK = c I, whose |tr(W)| is smaller at the same tr(W^2), can leave more. The chain (7) proves neither: it "
    "bounds an upper bound from below.",
    consequence="A large trace goes with slower collapse in simulation; do not take the largest for the best.",
    changes_our_mind="Anisotropic tokens for which W_QK = c Sigma^-1 leaves more than c I, for both signs.",
    no_perturbation="It states a direction and no number.",
    mutation=becomes("fails", "|tr(W)| minimised", shares=(1.0, 0.9, 0.5, 0.0)),
    monte_carlo=True,
)
def expressivity(run: AuditRun, shares: tuple[float, ...] = (0.0, 0.5, 0.9, 1.0)) -> Evidence:
    """Two attention layers, W_V = I, with spectra of a fixed tr(W^2).

    Isotropic tokens: the mean of the eigenvalues goes from 0 to its largest. Anisotropic ones: W_QK = c I is compared
    with the largest.
    Holds if more of the residual is left at the largest |tr(W)|, by five standard errors, in all cases; under a
    condition if so for isotropic tokens.
    """
    draws, random = run.pick(200, 80), generator(run.seed)
    kinds = [(tokens, sign) for tokens in ("independent tokens", "random walk") for sign in (1.0, -1.0)]
    logs = torch.zeros(len(kinds), len(shares), draws, dtype=torch.float64)
    for draw in range(draws):
        basis, noise = _spectrum(random)
        models = {
            "independent tokens": 0.5 * torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=random),
            "random walk": 0.35 * random_walks(1, WIDTH, WIDTH, random)[0],
        }
        for a, (tokens, sign) in enumerate(kinds):
            for b, share in enumerate(shares):
                values = sign * share + math.sqrt(1.0 - share**2) * noise
                logs[a, b, draw] = _left(models[tokens], (basis * values) @ basis.T)
    gain = logs[:, -1] - logs[:, 0]  # (kinds, draws)
    errors = gain.std(dim=1) / math.sqrt(draws)
    slower, error = gain.mean(dim=1) > SIGNIFICANT * errors, errors.max().item()
    uneven, uneven_errors = _anisotropic(run, draws, shares[-1] > shares[0])
    names = [f"{tokens}, {'positive' if sign > 0 else 'negative'} trace" for tokens, sign in kinds]
    rows = [(s, logs[a, b].mean().item(), name) for a, name in enumerate(names) for b, s in enumerate(shares)]
    return Evidence(
        judge(bool(slower.all() and (uneven > SIGNIFICANT * uneven_errors).all()), bool(slower.all())),
        f"From |tr(W)|/max = {shares[0]:g} to {shares[-1]:g}, log10 of the residual left after two layers changes by "
        + ", ".join(f"{g:+.2f} ({name})" for g, name in zip(gain.mean(dim=1), names, strict=True))
        + f"; standard error {error:.2f}. Anisotropic tokens, from W_QK = c I to the largest |tr(W)|: "
        f"{uneven[0]:+.2f} (positive trace), {uneven[1]:+.2f} (negative); standard error {uneven_errors.max():.2f}.",
        {name: g.item() for g, name in zip(gain.mean(dim=1), names, strict=True)}
        | {"anisotropic, positive trace": uneven[0].item(), "anisotropic, negative trace": uneven[1].item()},
        Plot("|tr W| over its maximum", "log10 of the residual", rows),
        standard_error=error,
    )


def _anisotropic(run: AuditRun, draws: int, rising: bool) -> tuple[Tensor, Tensor]:
    """Change of log10 of the residual left from W_QK = c I to W_QK = c' Sigma^-1 (or back), and its standard error.

    Both have the same tr(W^2); Sigma has eigenvalues 1, 1/2, 1/3, ... in a random basis.
    """
    random = generator(run.seed + 1)
    sizes = torch.arange(1, WIDTH + 1, dtype=torch.float64).reciprocal()
    sizes = sizes / sizes.mean()
    even = 1.0 / sizes.square().mean().sqrt()  # of W_QK = c I, so that tr(W^2) = d
    gain = torch.zeros(2, draws, dtype=torch.float64)
    for draw in range(draws):
        basis, _ = _spectrum(random)
        x = 0.5 * torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=random) @ (basis * sizes.sqrt()) @ basis.T
        for n, sign in enumerate((1.0, -1.0)):
            most, less = _left(x, sign * (basis / sizes) @ basis.T), _left(x, sign * even * (basis @ basis.T))
            gain[n, draw] = most - less if rising else less - most
    return gain.mean(dim=1), gain.std(dim=1) / math.sqrt(draws)


def _spectrum(random: torch.Generator) -> tuple[Tensor, Tensor]:
    """An orthogonal basis, and eigenvalues of mean 0 and mean square 1."""
    basis, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=random))
    noise = torch.randn(WIDTH, dtype=torch.float64, generator=random)
    noise = noise - noise.mean()
    return basis, noise / noise.norm() * math.sqrt(WIDTH)


def _left(x: Tensor, qk: Tensor, depth: int = 2) -> float:
    """log10 of the share of the residual that is left."""
    size = norm_1_inf(residual(x))
    for _ in range(depth):
        x = (x @ qk @ x.T / math.sqrt(len(qk))).softmax(dim=-1) @ x
    return float((norm_1_inf(residual(x)) / size).log10())
