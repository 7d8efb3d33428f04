"""Section 3 and Appendix B: the gradient of W_QK, its three terms and their orders in T."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from uncollapse.metrics import propagates
from uncollapse.theory import (
    OneLayer,
    Orders,
    generator,
    gradient_orders,
    piecewise_coefficients,
    qk_gradient,
    random_walks,
    walk_moments,
)

from ...audit.claim import ROUNDING, SIGNIFICANT, AuditRun, Evidence, Perturbation, Plot, becomes, judge, times
from ...figure import Size
from .sources import claim

WIDTH = 4
MINOR = 0.1  # a term below this share of another is dominated by it


def _model(run: AuditRun, gradient: bool = False) -> tuple[OneLayer, Tensor, Tensor]:
    random = generator(run.seed)
    qk, value, forward = torch.randn(3, WIDTH, WIDTH, dtype=torch.float64, generator=random) / 2
    x = random_walks(20, 6, WIDTH, random)
    y = torch.randn(20, WIDTH, dtype=torch.float64, generator=random)
    return OneLayer(qk.requires_grad_(gradient), value, forward, 1.7), x, y


def _eq_3(model: OneLayer, x: Tensor, y: Tensor) -> Tensor:
    first, second, third = qk_gradient(model, x, y)
    return first + second + third


def _without_p(model: OneLayer, x: Tensor, y: Tensor) -> Tensor:
    """B.1's last two lines: P is missing between Gamma and Gamma^T in the first term."""
    _, second, third = qk_gradient(model, x, y)
    gamma, _ = piecewise_coefficients(model.scores(x))
    last = x[:, -1]
    first = torch.einsum("nsi,nst,nut,nuk,kl,nl,nm->im", x, gamma, gamma, x, model.qk, last, last) / len(x)
    return first / model.temperature**2 + second + third


Gradient = Callable[[OneLayer, Tensor, Tensor], Tensor]


@claim(
    "localization-B1-lines",
    "Appendix B.1, fourth and fifth line of the derivation",
    "The first term of the gradient is E[X Gamma Gamma' X' W_QK x_T x_T']/lambda^2.",
    corrected="E[X Gamma P Gamma' X' W_QK x_T x_T']/lambda^2, as in Eq. 3: P is left out in two lines.",
    consequence="A slip of the pen; Eq. 3 itself is right.",
    root="localization-B1-lines",
    changes_our_mind="A convention by which Gamma contains P.",
    perturbation=Perturbation(lambda factor: {"gradient": times(factor, _eq_3)}),
    mutation=becomes("holds", "with P, as in Eq. 3", gradient=_eq_3),
    changes={"gradient": _without_p},
)
@claim(
    "localization-eq3",
    "Section 3, Eq. 3",
    "The gradient of the loss with respect to W_QK is the sum of the three terms printed.",
    consequence="Right; `qk_gradient` returns the three.",
    changes_our_mind="A model for which autograd of the loss gives another gradient.",
    perturbation=Perturbation(lambda factor: {"gradient": times(factor, _eq_3)}),
    mutation=becomes("fails", "without P in the first term", gradient=_without_p),
    changes={"gradient": _eq_3},
)
def eq_3(run: AuditRun, gradient: Gradient) -> Evidence:
    """Against autograd of the loss with the piecewise-linear softmax.

    Holds if they agree to 1e-9 of the gradient's size.
    """
    model, x, y = _model(run, gradient=True)
    [exact] = torch.autograd.grad(model.loss(x, y), model.qk)
    with torch.no_grad():
        error = ((gradient(model, x, y) - exact).norm() / exact.norm()).item()
    return Evidence(
        judge(error < ROUNDING), f"It differs from autograd by {error:.1e} of its size.", {"relative difference": error}
    )


def _spelled_out(model: OneLayer, x: Tensor, y: Tensor) -> Tensor:
    """Eq. 19 to 21 as sums over i, j, alpha, beta."""
    gamma, offset = piecewise_coefficients(model.scores(x))  # (n, alpha, i), (n, beta)
    through = model.value.T @ model.feed_forward.T
    pull, last = through @ through.T, x[:, -1]
    inner = torch.einsum("nik,kl,njl->nij", x, pull, x)
    weighted = torch.einsum("nbk,kl,nl->nb", x, model.qk, last)
    first = torch.einsum("nai,nbj,nij,nb,nak,nm->km", gamma, gamma, inner, weighted, x, last)
    second = torch.einsum("nai,nb,nib,nak,nm->km", gamma, offset, inner, x, last)
    error = last @ model.feed_forward.T - y
    third = torch.einsum("nai,nil,lk,nk,naj,nm->jm", gamma, x, through, error, x, last)
    return (first / model.temperature**2 + (second + third) / model.temperature) / len(x)


def _crossed(model: OneLayer, x: Tensor, y: Tensor) -> Tensor:
    return _spelled_out(model, x.flip(1), y)


@claim(
    "localization-eq19-21",
    "Appendix B.1, Eq. 19 to 21 (and Eq. 4)",
    "The three terms of Eq. 3 are the sums over token indices printed as Eq. 19, 20 and 21.",
    consequence="Right; the sums need not be formed, since X Gamma X' is a d by d matrix.",
    changes_our_mind="Indices for which the sums and Eq. 3 differ.",
    perturbation=Perturbation(lambda factor: {"gradient": times(factor, _spelled_out)}),
    mutation=becomes("fails", "tokens in reverse order", gradient=_crossed),
)
def eq_19_21(run: AuditRun, gradient: Gradient = _spelled_out) -> Evidence:
    """The sums against the matrix form.

    Holds if they agree to 1e-9 of the gradient's size.
    """
    model, x, y = _model(run)
    stated, exact = gradient(model, x, y), _eq_3(model, x, y)
    error = ((stated - exact).norm() / exact.norm()).item()
    return Evidence(
        judge(error < ROUNDING), f"Sums and matrix form differ by {error:.1e}.", {"relative difference": error}
    )


@cache
def _orders(size: Size, seed: int, strength: float) -> Orders:
    lengths = (64, 128, 256, 512) if size == "full" else (64, 128, 256)
    walks = 4000 if size == "full" else 1000
    eye = torch.eye(WIDTH, dtype=torch.float64)
    return gradient_orders(strength * eye, tokens=lengths, walks=walks, seed=seed)


@claim(
    "localization-eq4-dominates",
    "Section 3, Eq. 4, and Appendix B.2",
    "For large T the gradient is dominated by its first term, Eq. 19.",
    corrected="True where hardly any entry is clipped at 1. Otherwise gamma_0 = 1 on a share of the tokens makes "
    "Eq. 20 grow like T^3 too, and the two are of one size. Upper bounds cannot show dominance.",
    consequence="In the localised regime, tr(W)/lambda > 2, the second term must be kept.",
    changes_our_mind="Larger T at which the second term falls below a tenth of the first with strong scores too.",
    no_perturbation="It compares two terms; dominated is taken as below a tenth, and the shares found are far from "
    "that.",
    mutation=becomes("holds", "weak scores only", strengths=(0.1,)),
    monte_carlo=True,
)
def dominates(run: AuditRun, strengths: tuple[float, ...] = (0.1, 2.0)) -> Evidence:
    """Size of the second term over that of the first at the most tokens under Assumption 1, weak and strong W_QK.

    Holds if it is below a tenth, by five standard errors over three samples of walks, for both; under a condition if
    for one of them.
    """
    numbers: dict[str, float | int | str] = {}
    small, rows, error = [], [], 0.0
    for strength in strengths:
        samples = [_orders(run.size, run.seed + 100 * n, strength) for n in range(3)]
        ratios = [float(sample.norms[-1, 1] / sample.norms[-1, 0]) for sample in samples]
        orders, ratio, own = samples[0], float(np.mean(ratios)), float(np.std(ratios, ddof=1) / math.sqrt(len(ratios)))
        small.append(ratio + SIGNIFICANT * own < MINOR)
        error = max(error, own)
        numbers[f"Eq. 20 over Eq. 19, W_QK = {strength:g} I"] = ratio
        numbers[f"orders in T, W_QK = {strength:g} I"] = ", ".join(f"{slope:.2f}" for slope in orders.slopes)
        numbers[f"clipped at 1, W_QK = {strength:g} I"] = float(orders.clipped_above[-1])
        rows += [
            (t, float(norm[k]), f"Eq. {19 + k}, {strength:g} I")
            for t, norm in zip(orders.tokens, orders.norms, strict=True)
            for k in (0, 1)
        ]
    return Evidence(
        judge(all(small), any(small)),
        f"The second term is {numbers[f'Eq. 20 over Eq. 19, W_QK = {strengths[0]:g} I']:.2g} of the first with weak "
        f"scores and {numbers[f'Eq. 20 over Eq. 19, W_QK = {strengths[-1]:g} I']:.2g} of it with strong ones (standard "
        f"error at most {error:.2g}); dominated is taken as below {MINOR:g}.",
        numbers,
        Plot("tokens T", "size of the term", rows, log_x=True, log_y=True),
        standard_error=error,
    )


@claim(
    "localization-summands",
    "Section 3, after Eq. 4",
    "In Eq. 4 the summands with gamma_i^i dominate those with gamma_alpha^i, alpha not i.",
    corrected="The off-diagonal entries are -1/T^2 and T times as many. Leaving them out turns a covariance about "
    "the mean into a second moment about zero.",
    survives=False,
    consequence="Keep both; no T by T matrix is needed for it.",
    root="localization-off-diagonal",
    changes_our_mind="A T from which the ratio of the two sums goes to 1.",
    perturbation=Perturbation(lambda factor: {"mean_weight": factor}),
    mutation=becomes("holds", "all summands", mean_weight=1.0),
    monte_carlo=True,
)
def summands(run: AuditRun, mean_weight: float = 0.0) -> Evidence:
    """Eq. 19 with the stated summands alone over Eq. 19, W_QK = 0.02 I.

    Holds if the ratio is 1 to within 0.1 plus five standard errors.
    """
    tokens, walks = run.pick(512, 128), run.pick(2000, 500)
    random = generator(run.seed)
    x = random_walks(walks, tokens, WIDTH, random)
    qk = 0.02 * torch.eye(WIDTH, dtype=torch.float64)
    last = x[:, -1]
    passed = propagates((x @ qk @ last.unsqueeze(-1)).squeeze(-1)).unsqueeze(-1)

    def term(weight: float) -> Tensor:
        spread = ((x - weight * x.mean(dim=1, keepdim=True)) * passed).mT @ x / tokens
        return torch.einsum("nij,nkj,nk,nm->nim", spread, spread, last @ qk.T, last)

    full, kept = term(1.0), term(mean_weight)
    ratio = (kept.mean(dim=0).norm() / full.mean(dim=0).norm()).item()
    parts = zip(kept.chunk(10), full.chunk(10), strict=True)
    spread = torch.stack([own.mean(dim=0).norm() / all_.mean(dim=0).norm() for own, all_ in parts])
    error = spread.std().item() / math.sqrt(len(spread))
    return Evidence(
        judge(abs(ratio - 1.0) < 0.1 + SIGNIFICANT * error),
        f"With these summands alone Eq. 19 is {ratio:.2f} times as large at T = {tokens} (standard error {error:.2f}).",
        {"ratio": ratio, "tokens": tokens},
        standard_error=error,
    )


def _sums(tokens: int) -> dict[str, float]:
    """Exact sums behind the orders, with tr = tr^2 = 1 (d = 1): sums over i, j of E[(x_i x_j)^2] and so on."""
    cross = [
        walk_moments(min(i, j), max(i, j), 1.0, 1.0).cross for i in range(1, tokens + 1) for j in range(1, tokens + 1)
    ]
    last = [walk_moments(i, tokens, 1.0, 1.0).cross for i in range(1, tokens + 1)]
    return {"pairs": float(sum(cross)), "with the last": float(sum(last))}


@cache
def _exponents() -> dict[str, float]:
    small, large = _sums(60), _sums(120)
    return {name: math.log2(large[name] / small[name]) for name in small}


@dataclass(frozen=True)
class FactorOrder:
    """A factor of a printed bound: its exponent of T as printed, and the one that it has."""

    printed: float
    sharp: float


# The sum of squares of the coefficients gamma is 1/T: T of them are 1/T, T^2 of them 1/T^2. Of gamma_0 it is at most T.
_FACTORS: dict[int, Callable[[], Mapping[str, FactorOrder]]] = {
    19: lambda: {
        "(A)": FactorOrder(0.0, -2.0),
        "(B)": FactorOrder(6.0, 2.0 + _exponents()["pairs"]),
        "(C)": FactorOrder(6.0, 3.0 + _exponents()["with the last"]),
        "(D)": FactorOrder(6.0, 3.0 + _exponents()["with the last"]),
    },
    20: lambda: {
        "first": FactorOrder(1.0, 0.0),
        "second": FactorOrder(4.0, 1.0 + _exponents()["pairs"]),
        "third": FactorOrder(5.0, 2.0 + _exponents()["with the last"]),
    },
    21: lambda: {
        "first": FactorOrder(0.0, -1.0),
        "second": FactorOrder(4.0, 1.0 + _exponents()["with the last"]),
        "third": FactorOrder(4.0, 1.0 + _exponents()["with the last"]),
    },
}
_STEPS = {
    19: "The bound is right; its (A) = O(1) is loose, and it takes (A) = T^-2 to come from the factors to T^8.",
    20: "The bound is right; of its factors the first is O(1), not O(T), and the second T^5, not T^4.",
    21: "The bound is right.",
}


def _bound_order(run: AuditRun, equation: int, order: float) -> Evidence:
    """Half the sum of the factors' exponents, from exact sums of Gaussian moments at T = 60 and 120.

    The printed inequality is taken as given. Holds if the exponent is at most the stated one, to 0.05.
    """
    factors = _FACTORS[equation]()
    derived = sum(own.sharp for own in factors.values()) / 2.0
    other = [name for name, own in factors.items() if abs(own.printed - own.sharp) > 0.25]
    return Evidence(
        judge(derived < order + 0.05),
        f"The factors multiply to T^{2 * derived:.1f}, so the bound is T^{derived:.1f}; stated T^{order:g}. Factors "
        f"printed with another exponent: {', '.join(other) or 'none'}.",
        {f"exponent of {name}": f"{own.sharp:.2f} (printed {own.printed:g})" for name, own in factors.items()},
    )


def _lower_order(order: float) -> Callable[[float], Mapping[str, float]]:
    return lambda factor: {"order": factor * order}


for _equation, _order, _lower in ((19, 8.0, 7.0), (20, 5.0, 4.0), (21, 4.0, 3.0)):
    claim(
        f"localization-B2-order{_equation}",
        f"Appendix B.2, order of Eq. {_equation}",
        f"|Eq. {_equation}| = O(T^{_order:g}).",
        consequence=f"{_STEPS[_equation]} It is far above the true growth, T^3 or less: see eq4-dominates.",
        changes_our_mind=f"A sum behind the factors that grows so fast that the bound exceeds T^{_order:g}.",
        perturbation=Perturbation(_lower_order(_order), factors=(0.8,)),
        mutation=becomes("fails", f"T^{_lower:g}", order=_lower),
        changes={"equation": _equation, "order": _order},
    )(_bound_order)


@claim(
    "localization-B2-cauchy-schwarz",
    "Appendix B.2, first inequality",
    "By Cauchy-Schwarz, |sum E[a b c d]|^2 is at most the product of the sums of E[a^2], E[b^2], E[c^2] and E[d^2].",
    corrected="That is no Cauchy-Schwarz inequality with four factors, and false: a = b = c = d = x ~ N(0, 1) has 9 "
    "on the left and 1 on the right. Orders survive, since Gaussian moments of one degree are equivalent.",
    consequence="Split into two factors, and bound the fourth moments that result.",
    root="localization-cauchy-schwarz",
    changes_our_mind="A version of the inequality for four factors that the counterexample does not break.",
    perturbation=Perturbation(lambda factor: {"factors": 2, "factor": factor}, factors=(0.8,)),
    mutation=becomes("holds", "two factors, a and b", factors=2),
)
def cauchy_schwarz(run: AuditRun, factors: int = 4, factor: float = 1.0) -> Evidence:
    """All factors equal to one standard normal x, whose moments E[x^2] and E[x^4] are those of the first step.

    Holds if the left side is not larger.
    """
    step = walk_moments(1, 1, 1.0, 1.0)
    left = {2: step.quadratic, 4: step.quartic}[factors] ** 2
    right = factor * step.quadratic**factors
    return Evidence(
        judge(left <= right),
        f"{factors} equal standard normal factors: left {left:g}, right {right:g}.",
        {"left": left, "right": right},
    )
