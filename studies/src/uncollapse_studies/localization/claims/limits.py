"""Section 4 and Appendix C: Lemma 2, its proof, and what is read off Figures 2 and 3."""

from __future__ import annotations

import math

import numpy as np
import torch

from uncollapse.metrics import propagates
from uncollapse.theory import (
    Form,
    derivative_bound,
    generator,
    qk_statistics,
    random_walks,
    signal_propagation,
    signal_propagation_derivative,
    signal_propagation_limit,
)
from uncollapse.theory.form import Array

from ...audit.claim import SIGNIFICANT, AuditRun, Evidence, Perturbation, Plot, becomes, judge
from .sources import claim

FORMS: tuple[Form, ...] = ("corrected", "as_printed")
THETA = np.linspace(0.0, 1.0, 201)


@claim(
    "localization-lemma2-2",
    "Section 4, Lemma 2, item 2 (early and middle site)",
    "As (xi, eta) goes to (-infinity, 0) with xi eta to r < 0, rho is 1 from 1/2 + 1/r (or 0) to 1/2, edges "
    "included, and 0 elsewhere.",
    corrected="Inside and outside, yes, whatever the variance factor. At theta = 1/2 the limit is 1/2, and at 1/2 + "
    "1/r it is 1/2 on the path xi eta = r. r = 0 need not be excluded.",
    consequence="The early- and middle-site regimes are real; no token sits exactly on an edge.",
    changes_our_mind="A path to the limit on which rho at theta = 1/2 goes to 1.",
    perturbation=Perturbation(lambda factor: {"form": "corrected", "factor": factor}),
    mutation=becomes("holds", "1/2 on the edges", form="corrected"),
    changes={"sign": -1},
)
@claim(
    "localization-lemma2-1",
    "Section 4, Lemma 2, item 1 (late and middle site)",
    "As (xi, eta) goes to (infinity, 0) with xi eta to r, rho is 1 from 1/2 to 1/2 + 1/r (or 1), edges included, and 0 "
    "elsewhere.",
    corrected="Inside and outside, yes, whatever the variance factor. At theta = 1/2 the limit is 1/2, since the "
    "Gaussian is cut in its middle, and so it is at 1/2 + 1/r on the path xi eta = r.",
    consequence="The late- and middle-site regimes are real; at a finite width xi <= sqrt(d) they are blurred.",
    changes_our_mind="A path to the limit on which rho at theta = 1/2 goes to 1.",
    perturbation=Perturbation(lambda factor: {"form": "corrected", "factor": factor}),
    mutation=becomes("holds", "1/2 on the edges", form="corrected"),
    changes={"sign": 1},
)
def limit(run: AuditRun, sign: int, form: Form = "as_printed", factor: float = 1.0) -> Evidence:
    """Far along the path xi eta = r, with either variance factor.

    Holds if rho is within 0.001 of the stated limit at eta = 1e-6 everywhere; under a condition if it is so away from
    the edges.
    """

    def stated(theta: Array, r: float) -> Array:
        return signal_propagation_limit(theta, sign * r * factor, form)

    inside, edges = 0.0, 0.0
    for r in (0.5, 1.0, 2.0, 4.0, 8.0):  # whose edges are exact numbers
        edge = [0.5] + ([0.5 + sign / r] if r >= 2.0 else [])
        away = THETA[np.min(np.abs(THETA[:, None] - np.asarray(edge)), axis=1) > 0.004]
        for variance in FORMS:
            eta = 1e-6
            gap = [
                float(np.abs(signal_propagation(t, sign * r / eta, eta, variance) - stated(t, r)).max())
                for t in (away, np.asarray(edge))
            ]
            inside, edges = max(inside, gap[0]), max(edges, gap[1])
    return Evidence(
        judge(inside < 1e-3 and edges < 1e-3, inside < 1e-3),
        f"At eta = 1e-6 rho differs from the stated limit by {inside:.1e} away from the edges and by {edges:.2f} on "
        "them.",
        {"away from the edges": inside, "on the edges": edges},
    )


@claim(
    "localization-lemma2-3",
    "Section 4, Lemma 2, item 3 (uniformity)",
    "At a fixed eta, the slope of rho goes to 0 everywhere as |xi| goes to 0: positions propagate alike.",
    corrected="rho goes to 1/2 uniformly as (xi, eta) goes to (0, 0). At a fixed eta and xi = 0, rho = erf(1/(eta "
    "sqrt(2c)))/2, which varies by up to sqrt(7) between the middle and the ends.",
    survives=False,
    consequence="A zero trace does not make attention uniform; there is a middle-site focus once eta exceeds about "
    "0.5.",
    root="localization-uniformity",
    changes_our_mind="A variance factor that does not depend on the position: then the slope at xi = 0 vanishes.",
    no_perturbation="It states a limit of 0, which no factor changes.",
    mutation=becomes("holds", "eta going to 0 as well", etas=(0.05,)),
)
def uniformity(run: AuditRun, etas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 10.0)) -> Evidence:
    """The largest slope at xi = 1e-9, with either variance factor.

    Holds if the slope is below 0.001 at every eta.
    """
    slopes = {
        (form, eta): float(np.abs(np.gradient(signal_propagation(THETA, 1e-9, eta, form), THETA)).max())
        for form in FORMS
        for eta in etas
    }
    largest = signal_propagation(np.array([0.0, 0.5]), 0.0, max(etas))
    rows = [
        (float(t), float(v), f"eta = {eta:g}")
        for eta in etas[-4:]
        for t, v in zip(THETA[::10], signal_propagation(THETA[::10], 0.0, eta), strict=True)
    ]
    return Evidence(
        judge(max(slopes.values()) < 1e-3),
        f"At xi = 1e-9 the slope is up to {max(v for (f, _), v in slopes.items() if f == 'corrected'):.3f} with the "
        f"corrected variance and {max(v for (f, _), v in slopes.items() if f == 'as_printed'):.3f} with the printed "
        f"one; at eta = {max(etas):g} the middle propagates {largest[1] / largest[0]:.2f} times as often as the ends.",
        {f"slope, {form.replace('_', ' ')}, eta = {eta:g}": value for (form, eta), value in slopes.items()},
        Plot("position", "rho at xi = 0", rows),
    )


@claim(
    "localization-A1-uniform",
    "Section 4, summary A1, second item",
    "rho is uniform when tr(W) is near zero while tr(W^2) stays finite.",
    corrected="It is uniform when both are near zero. With a zero trace and a finite tr(W^2) the middle propagates "
    "most.",
    survives=False,
    consequence="The spectrum's mean alone does not tell uniform from localised; look at eta too.",
    root="localization-uniformity",
    changes_our_mind="A reading of uniform that allows the middle to propagate up to 2.6 times as often as the ends.",
    no_perturbation="It states that positions are alike and has no number.",
    mutation=becomes("holds", "tr(W^2) near zero as well", eta=0.001),
    monte_carlo=True,
)
def traceless(run: AuditRun, eta: float = 4.0) -> Evidence:
    """Walks with an exactly traceless W_QK of 64 eigenvalues: rho at the ends and in the middle.

    Holds if middle and ends differ by less than five standard errors.
    """
    width, tokens, walks = 64, 101, run.pick(6000, 1000)
    random = generator(run.seed)
    spread = torch.randn(width, dtype=torch.float64, generator=random)
    spread = eta * (spread - spread.mean()) / (spread - spread.mean()).norm()
    count = torch.zeros(tokens, dtype=torch.float64)
    for _ in range(5):
        walk = random_walks(walks // 5, tokens, width, random)
        count += propagates(((walk * spread) @ walk[:, -1].unsqueeze(-1)).squeeze(-1)).sum(dim=0)
    rho = (count / walks).numpy()
    ends, middle = float((rho[1] + rho[-1]) / 2), float(rho[tokens // 2])
    error = math.sqrt(0.5) / math.sqrt(walks)
    closed = qk_statistics(np.diag(spread.numpy()), temperature=1.0).propagation(tokens)
    rows = [
        (n / tokens, float(v), name)
        for name, values in (("simulated", rho), ("closed form", closed))
        for n, v in enumerate(values, start=1)
        if n % 4 == 0
    ]
    return Evidence(
        judge(abs(middle - ends) < SIGNIFICANT * error),
        f"Zero trace, eta = {eta:g}: rho is {middle:.3f} in the middle and {ends:.3f} at the ends (standard error "
        f"{error:.3f}).",
        {"middle": middle, "ends": ends, "walks": walks},
        Plot("position", "rho", rows),
        standard_error=error,
    )


@claim(
    "localization-lemma2-3-derivative",
    "Appendix C, proof of Lemma 2, item 3, derivative",
    "The derivative of rho is the bracket printed, with 4 theta^2 - theta + 5/3 and a factor xi before all of it.",
    corrected="With u = 2c: rho' = pi^(-1/2) u^(-3/2) {e^(-z1^2) xi/6 - e^(-z2^2) [xi/6 + (4 theta - 2)/eta]}. The "
    "print loses u'/2 in the quotient rule and puts xi before 1/eta.",
    survives=False,
    consequence="The factor xi is what made item 3 look true.",
    root="localization-uniformity",
    changes_our_mind="A point at which finite differences of Eq. 6 give the printed slope and not the corrected one.",
    perturbation=Perturbation(lambda factor: {"form": "corrected", "factor": factor}),
    mutation=becomes("holds", "the corrected derivative", form="corrected"),
)
def derivative(run: AuditRun, form: Form = "as_printed", factor: float = 1.0) -> Evidence:
    """Against finite differences of Eq. 6 in the same form.

    Holds if they agree to 1e-6.
    """
    worst, step = 0.0, 1e-5
    for xi, eta in ((2.0, 1.0), (-3.0, 0.5), (0.5, 4.0)):
        theta = np.linspace(0.05, 0.95, 19)
        around = [signal_propagation(theta + s * step, xi, eta, form) for s in (1.0, -1.0)]
        found = (around[0] - around[1]) / (2.0 * step)
        worst = max(worst, float(np.abs(found - factor * signal_propagation_derivative(theta, xi, eta, form)).max()))
    example = [float(signal_propagation(0.7 + s * step, 2.0, 1.0, form)) for s in (1.0, -1.0)]
    slope, stated = (example[0] - example[1]) / (2 * step), float(signal_propagation_derivative(0.7, 2.0, 1.0, form))
    return Evidence(
        judge(worst < 1e-6),
        f"At theta = 0.7, xi = 2, eta = 1 the slope of Eq. 6 is {slope:.3f}, the stated derivative {stated:.3f}; the "
        f"largest difference found is {worst:.2g}.",
        {"slope": slope, "stated": stated, "largest difference": worst},
    )


@claim(
    "localization-lemma2-3-bound",
    "Appendix C, proof of Lemma 2, item 3, bound",
    "|rho'| is at most pi^(-1/2) u^(-3/2) |xi|/eta.",
    corrected="pi^(-1/2) u^(-3/2) (|xi|/6 + |4 theta - 2| e^(-z2^2)/eta). The printed step |e1 A - e2 B| <= |A - B| "
    "is not valid for 0 < e1, e2 <= 1.",
    survives=False,
    consequence="`derivative_bound` has the right one; it vanishes as xi and eta both do.",
    root="localization-uniformity",
    changes_our_mind="A valid step from the printed derivative to this bound.",
    perturbation=Perturbation(lambda factor: {"form": "corrected", "factor": factor}, factors=(0.8,)),
    mutation=becomes("holds", "the corrected bound", form="corrected"),
)
def slope_bound(run: AuditRun, form: Form = "as_printed", factor: float = 1.0) -> Evidence:
    """On a grid of positions, xi and eta, against the slope of Eq. 6 in the same form; the corrected bound is attained.

    Holds if no point exceeds it by more than 1e-6 of it.
    """
    theta, xi, eta = np.meshgrid(
        np.linspace(0.02, 0.98, 25), np.linspace(-8, 8, 33), [0.1, 0.3, 1.0, 3.0], indexing="ij"
    )
    step = 1e-5
    slope = (signal_propagation(theta + step, xi, eta, form) - signal_propagation(theta - step, xi, eta, form)) / (
        2 * step
    )
    bound = factor * derivative_bound(theta, xi, eta, form)
    broken = int((np.abs(slope) > bound * (1 + 1e-6) + 1e-7).sum())
    return Evidence(
        judge(broken == 0),
        f"Exceeded at {broken} of {slope.size} points.",
        {"points": slope.size, "exceeded": broken},
    )


@claim(
    "localization-lemma2-4",
    "Section 4, Lemma 2, item 4, Figure 2 (vanishing signal), and summary A1, third item",
    "At a fixed xi, rho goes to 0 at every position as eta goes to infinity.",
    consequence="Large query-key weights stop signals, with either variance factor: rho falls like 1/eta.",
    changes_our_mind="A xi and a position at which rho stays above 0 as eta grows.",
    no_perturbation="It states a limit of 0, which no factor changes.",
    mutation=becomes("fails", "eta going to 0", etas=(1.0, 0.1, 0.01)),
)
def vanishing(run: AuditRun, etas: tuple[float, ...] = (1.0, 10.0, 100.0, 1e4)) -> Evidence:
    """The largest rho over positions, both factors, several xi.

    Holds if it is below 0.001 at the largest eta.
    """
    largest = {
        eta: max(float(signal_propagation(THETA, xi, eta, form).max()) for xi in (-5.0, 0.0, 3.0) for form in FORMS)
        for eta in etas
    }
    return Evidence(
        judge(largest[etas[-1]] < 1e-3),
        "Largest rho: " + ", ".join(f"{value:.2g} at eta = {eta:g}" for eta, value in largest.items()) + ".",
        {f"eta = {eta:g}": value for eta, value in largest.items()},
        Plot("eta", "largest rho", [(e, v, "rho") for e, v in largest.items()], log_x=True, log_y=True),
    )
