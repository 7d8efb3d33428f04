"""Appendix A and the proof of Lemma 1: Gaussian moments, moments of a random walk, and the sums made of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from uncollapse.theory import Form, GaussianMoments, gaussian_moments, generator, random_walks, walk_moments

from ...audit.claim import ROUNDING, SIGNIFICANT, AuditRun, Evidence, Perturbation, Plot, becomes, judge, times
from .sources import claim

WIDTH = 3


def _symmetric(random: torch.Generator) -> Tensor:
    m = torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=random)
    return (m + m.T) / 2 + torch.eye(WIDTH, dtype=torch.float64)


def _covariance(random: torch.Generator) -> Tensor:
    m = torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=random)
    return m @ m.T / WIDTH + 0.3 * torch.eye(WIDTH, dtype=torch.float64)


def _centred(*arguments: object) -> GaussianMoments:
    weights, covariance, mean, vector = (np.asarray(a) for a in arguments)
    return gaussian_moments(weights, covariance, 0.5 * mean, vector)


_LEMMA_3 = {
    11: ("quadratic", "E[x'Wx] = tr(W Sigma) + m'Wm"),
    12: ("second", "E[xx'] = Sigma + mm'"),
    13: ("cubic", "E[a'Wx x'Wx] = 2 a'W Sigma W m + a'Wm (tr(W Sigma) + m'Wm)"),
    14: ("quartic", "E[(x'Wx)^2] has the five terms printed"),
}


def _lemma_3(
    run: AuditRun, name: str, moments: Callable[..., GaussianMoments] = gaussian_moments, factor: float = 1.0
) -> Evidence:
    """Samples of N(m, Sigma) against the closed form.

    Holds if they are within five standard errors.
    """
    random = generator(run.seed)
    w, sigma = _symmetric(random), _covariance(random)
    mean, vector = torch.randn(2, WIDTH, dtype=torch.float64, generator=random) + 0.5
    count = run.pick(1_000_000, 200_000)
    x = mean + torch.randn(count, WIDTH, dtype=torch.float64, generator=random) @ torch.linalg.cholesky(sigma).T
    form = ((x @ w) * x).sum(dim=1)
    samples = {
        "quadratic": form[:, None],
        "second": (x[:, :, None] * x[:, None, :]).flatten(1),
        "cubic": (x @ w @ vector * form)[:, None],
        "quartic": form[:, None] ** 2,
    }[name]
    stated = factor * np.asarray(getattr(moments(w, sigma, mean, vector), name)).reshape(-1)
    error = (samples.std(dim=0) / count**0.5).numpy()
    z = float(np.abs((samples.mean(dim=0).numpy() - stated) / error).max())
    return Evidence(
        judge(z < SIGNIFICANT),
        f"{count:,} samples differ from it by at most {z:.1f} standard errors.",
        {"stated": float(stated[0]), "sampled": samples.mean(dim=0)[0].item(), "standard errors apart": z},
        standard_error=float(error[0]),
    )


for _number, (_name, _formula) in _LEMMA_3.items():
    claim(
        f"localization-eq{_number}",
        f"Appendix A, Lemma 3, Eq. {_number}",
        f"For x ~ N(m, Sigma) and a symmetric W, {_formula}.",
        consequence='Right ("Fix a, mu" should read "Fix a, m"); `gaussian_moments`.',
        changes_our_mind="Samples that lie five standard errors away.",
        perturbation=Perturbation(lambda factor: {"factor": factor}),
        mutation=becomes("fails", "half of the mean m", moments=_centred),
        monte_carlo=True,
        changes={"name": _name},
    )(_lemma_3)

_LEMMA_4 = {
    15: ("quadratic", "E[x_i'Wx_i] = (i - 1) t1", "i t1"),
    16: ("quartic", "E[(x_i'Wx_i)^2] = (i^2 - 2i + 2)(2 t2 + t1^2)", "i^2 (2 t2 + t1^2)"),
    17: ("cross", "E[(x_i'Wx_j)^2] = (i^2 + ij - 3i - j + 4) t2 + (i^2 - 2i + 2) t1^2", "(i^2 + ij) t2 + i^2 t1^2"),
    18: ("mixed", "E[x_i'Wx_j x_j'Wx_j] = (ij - i - j + 2)(2 t2 + t1^2)", "ij (2 t2 + t1^2)"),
    22: (
        "last",
        "E[x_i'Wx_T x_j'Wx_T] = (ij + (T-2)i - j - (T-4)) t2 + (ij - i - j + 2) t1^2",
        "(ij + Ti) t2 + ij t1^2",
    ),
}
PAIRS = ((1, 3), (2, 4), (3, 3), (3, 5))
LAST = 6


def _lemma_4(run: AuditRun, name: str, form: Form = "as_printed", factor: float = 1.0) -> Evidence:
    """Random walks against the closed form at four pairs of positions.

    Holds if they are within five standard errors.
    """
    random = generator(run.seed)
    w, sigma = _symmetric(random), _covariance(random)
    ws = w @ sigma
    t1, t2 = ws.trace().item(), (ws @ ws).trace().item()
    count = run.pick(400_000, 40_000)
    walk = random_walks(count, LAST, WIDTH, random, sigma)
    apart, worst, rows = 0.0, 0.0, []
    for i, j in PAIRS:
        xi, xj, xt = walk[:, i - 1], walk[:, j - 1], walk[:, -1]
        wj = xj @ w
        samples = {
            "quadratic": (xi @ w * xi).sum(dim=1),
            "quartic": (xi @ w * xi).sum(dim=1) ** 2,
            "cross": (wj * xi).sum(dim=1) ** 2,
            "mixed": (wj * xi).sum(dim=1) * (wj * xj).sum(dim=1),
            "last": (xt @ w * xi).sum(dim=1) * (xt @ w * xj).sum(dim=1),
        }[name]
        stated = factor * getattr(walk_moments(i, j, t1, t2, LAST, form), name)
        error = samples.std().item() / count**0.5
        apart, worst = max(apart, abs(samples.mean().item() - stated) / error), max(worst, error)
        rows += [(f"i={i}, j={j}", samples.mean().item(), "sampled"), (f"i={i}, j={j}", stated, "stated")]
    return Evidence(
        judge(apart < SIGNIFICANT),
        f"Of four pairs of positions the worst is {apart:.3g} standard errors from {count:,} sampled walks.",
        {"largest distance in standard errors": apart, "walks": count},
        Plot("positions", "moment", rows, kind="point"),
        standard_error=worst,
    )


for _number, (_name, _formula, _right) in _LEMMA_4.items():
    _place = "Appendix A, Lemma 4" if _number < 20 else "Appendix C, proof of Lemma 1"
    claim(
        f"localization-eq{_number}",
        f"{_place}, Eq. {_number}",
        f"For the random walk of Assumption 1 and i <= j, {_formula}, with t1 = tr(W Sigma), t2 = tr(W Sigma W Sigma).",
        corrected=f"{_right}. The print starts the walk at x_1 = 0 in Eq. 15 and shifts the others by constants, so "
        "that it fits neither start; the leading order in the positions is right.",
        consequence="Lemma 1 needs the leading order only and is not harmed by this.",
        root="localization-lemma4-constants",
        changes_our_mind="A start of the walk for which all five printed forms hold; x_1 = 0 fits Eq. 15 alone.",
        perturbation=Perturbation(lambda factor: {"form": "corrected", "factor": factor}),
        mutation=becomes("holds", "the corrected moments", form="corrected"),
        monte_carlo=True,
        changes={"name": _name},
    )(_lemma_4)


def _terms(i: int, tokens: int) -> dict[str, float]:
    """The terms of the proof, exactly: in units of tr(W^2), sums of T min(j, k) + j k, and of tr(W)^2, sums of j k."""
    j = np.arange(1, tokens + 1, dtype=np.float64)
    parts = {
        "": (tokens * np.minimum(i, j) + i * j, tokens * np.minimum.outer(j, j) + np.outer(j, j)),
        ", tr(W)^2": (i * j, np.outer(j, j)),
    }
    terms = {}
    for of, (line, grid) in parts.items():
        terms[f"A{of}"] = float(line[i - 1])
        terms[f"B1{of}"] = 2.0 * float(line[i - 1])
        terms[f"B2{of}"] = 2.0 * float(line[i:].sum())
        terms[f"B3{of}"] = 2.0 * float(line[: i - 1].sum())
        terms[f"C1{of}"] = float(np.trace(grid))
        terms[f"C2{of}"] = float(grid.sum() - np.trace(grid))
    return terms


def _printed_b2(theta: float) -> float:
    return theta - 2.0 * theta**2 - theta**3


def _right_b2(theta: float) -> float:
    return 3.0 * theta - 2.0 * theta**2 - theta**3


_POWERS = {"A": 2, "B1": 3, "B2": 3, "B3": 3, "C1": 4, "C2": 4}
_OTHERS: dict[str, Callable[[float], float]] = {
    "A": lambda theta: theta**2 + theta,
    "B1": lambda theta: 0.0,
    "B3": lambda theta: theta**2 + theta**3,
    "C1": lambda theta: 0.0,
    "C2": lambda theta: 7.0 / 12.0,
    "A, tr(W)^2": lambda theta: theta**2,
    "B2, tr(W)^2": lambda theta: theta - theta**3,
    "B3, tr(W)^2": lambda theta: theta**3,
    "C2, tr(W)^2": lambda theta: 0.25,
}


@claim(
    "localization-proof1-b2",
    "Appendix C, proof of Lemma 1, term (B2)",
    "(B2) = (T^2 i - 2 T i^2 - i^3) tr(W^2) + ... in the leading order.",
    corrected="(3 T^2 i - 2 T i^2 - i^3) tr(W^2) + ...: the sum of T i over j > i was left out.",
    consequence="This is the one slip behind the wrong variance of Lemma 1.",
    root="localization-lemma1-variance",
    changes_our_mind="A sum over j > i that gives T^2 i in place of 3 T^2 i.",
    perturbation=Perturbation(lambda factor: {"stated": {"B2": times(factor, _right_b2)}}),
    mutation=becomes("holds", "3 T^2 i", stated={"B2": _right_b2}),
    changes={"stated": {"B2": _printed_b2}},
)
@claim(
    "localization-proof1-terms",
    "Appendix C, proof of Lemma 1, terms (A) to (C2) but for the tr(W^2) part of (B2)",
    "(A) = (i^2 + T i), (B3) = (T i^2 + i^3), (C2) = 7 T^4/12, each times tr(W^2), in the leading order, (B1) and (C1) "
    "are of lower order, and all parts with tr(W)^2 are as printed.",
    consequence="All terms but one part of (B2) are right.",
    changes_our_mind="A term whose exact sum has another leading order.",
    perturbation=Perturbation(lambda factor: {"stated": {**_OTHERS, "C2": times(factor, _OTHERS["C2"])}}),
    mutation=becomes("fails", "(C2) = T^4/2", stated={**_OTHERS, "C2": lambda theta: 0.5}),
    changes={"stated": _OTHERS},
)
def proof_terms(run: AuditRun, stated: dict[str, Callable[[float], float]]) -> Evidence:
    """Exact sums at T = 800 against the leading order.

    Holds if they agree to 10/T.
    """
    tokens, worst = 800, 0.0
    numbers: dict[str, float | int | str] = {}
    for theta in (0.2, 0.5, 0.8):
        exact = _terms(round(theta * tokens), tokens)
        for name, leading in stated.items():
            value = exact[name] / tokens ** _POWERS[name.split(",")[0]]
            worst = max(worst, abs(value - leading(theta)))
            numbers[f"{name}, theta = {theta:g}"] = f"{value:.3f} (stated {leading(theta):.3f})"
    return Evidence(
        judge(worst < 10.0 / tokens + ROUNDING),
        f"At T = {tokens} the exact sums differ from the stated leading order by at most {worst:.3g}.",
        numbers,
    )
