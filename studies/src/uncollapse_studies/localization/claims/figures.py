"""Section 4: what is read off Figures 2 and 3, and under which conditions rho localises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

from uncollapse.metrics import localisation
from uncollapse.theory import Form, propagation_variance, qk_statistics, signal_propagation

from ...audit.claim import ROUNDING, AuditRun, Evidence, Perturbation, Plot, becomes, judge
from .limits import FORMS, THETA
from .sources import claim

TEMPERATURES: dict[str, Callable[[int], float]] = {"sqrt(d)": math.sqrt, "1": lambda width: 1.0}


@claim(
    "localization-large-r",
    "Section 4, after Lemma 2",
    "rho localises at the middle site when |r| = |tr(W)|/lambda is far above 2.",
    consequence="A share 1/r of the tokens propagates; that is the localised regime.",
    changes_our_mind="A large r at which a third of the positions or more propagate.",
    no_perturbation="It states a tendency; the number for localised is ours.",
    mutation=becomes("fails", "r = 1", rs=(1.0,)),
)
def large_r(run: AuditRun, rs: tuple[float, ...] = (4.0, 8.0, 16.0)) -> Evidence:
    """The share of positions with rho above one half, near the limit.

    Holds if it is below 0.3 at every r.
    """
    shares = {r: float((signal_propagation(THETA, r / 1e-3, 1e-3) > 0.5).mean()) for r in rs}
    return Evidence(
        judge(all(share < 0.3 for share in shares.values())),
        "Share of positions that propagate: " + ", ".join(f"{s:.2f} at r = {r:g}" for r, s in shares.items()) + ".",
        {f"r = {r:g}": share for r, share in shares.items()},
    )


@claim(
    "localization-small-r",
    "Section 4, after Lemma 2",
    "Attention becomes relatively uniform when xi eta = tr(W)/lambda is kept close to zero.",
    corrected="If xi is near zero too. At a large xi and a small eta the product is near zero, and Lemma 2, item 1, "
    "itself "
    "says that only late tokens propagate.",
    consequence="tr(W)/lambda alone does not tell; xi and eta do.",
    changes_our_mind="A reading in which xi is kept near zero as well.",
    no_perturbation="It states a tendency; the number for uniform is ours.",
    mutation=becomes("holds", "xi near zero", pairs=((0.1, 0.1),)),
)
def small_r(run: AuditRun, pairs: tuple[tuple[float, float], ...] = ((8.0, 0.001), (0.1, 0.1))) -> Evidence:
    """The largest rho of Eq. 6 over the smallest, either variance, where xi eta is 0.01 or less.

    Holds if it is below 1.5, taken for "relatively uniform", at all pairs; under a condition if at some.
    """
    ratios = {pair: max(_contrast(*pair, form) for form in FORMS) for pair in pairs}
    uniform = [ratio < 1.5 for ratio in ratios.values()]
    return Evidence(
        judge(all(uniform), any(uniform)),
        "Largest over smallest rho: "
        + ", ".join(f"{v:.3g} at xi = {xi:g}, eta = {eta:g}" for (xi, eta), v in ratios.items())
        + ".",
        {f"xi = {xi:g}, eta = {eta:g}": v for (xi, eta), v in ratios.items()},
    )


@claim(
    "localization-A1-localises",
    "Section 4, summary A1, first item",
    "rho localises when tr(W^2) is close to zero while |tr(W)| stays well away from zero.",
    corrected="At a fixed temperature and a growing width. With lambda = sqrt(d), as is common, tr(W)/lambda = r needs "
    "tr(W^2) of at least r^2 at every width; what goes to zero is tr(W^2)/lambda^2.",
    consequence="Look at eta = sqrt(tr(W^2))/lambda, not at tr(W^2).",
    changes_our_mind="A matrix with lambda = sqrt(d), tr(W)/lambda above 2 and tr(W^2) near zero.",
    no_perturbation="It states a tendency; the number for close to zero is ours.",
    mutation=becomes("holds", "a temperature of 1", temperatures={"1": lambda width: 1.0}),
)
def concentrated(run: AuditRun, temperatures: Mapping[str, Callable[[int], float]] = TEMPERATURES) -> Evidence:
    """The least tr(W^2) of a W with tr(W)/lambda = 4, well in the localised regime: that of equal eigenvalues.

    Holds if it is below 0.1 at d = 16,384 for every temperature; under a condition if for some.
    """
    widths, least, rows = (64, 1024, 16384), {}, []
    for name, temperature in temperatures.items():
        for width in widths:
            trace = 4.0 * temperature(width)
            least[name] = trace**2 / width  # by Eq. 5
            rows.append((width, least[name], f"lambda = {name}"))
    close = [value < 0.1 for value in least.values()]
    return Evidence(
        judge(all(close), any(close)),
        "For tr(W)/lambda = 4 the least tr(W^2) at d = 16,384 is "
        + ", ".join(f"{v:.2g} with lambda = {name}" for name, v in least.items())
        + ".",
        {f"least tr(W^2), lambda = {name}": v for name, v in least.items()},
        Plot("d", "least tr(W^2)", rows, log_x=True, log_y=True),
    )


@claim(
    "localization-fig2-concentrates",
    "Section 4, Figure 2, localisation",
    "For |xi| of 5 and more, rho concentrates on fewer tokens as eta increases.",
    corrected="With the corrected variance rho concentrates on fewer tokens in every case. With the printed one, which "
    "Figure 2 draws, rho at xi = 5 falls everywhere and its shape becomes flatter: fewer tokens pass a fixed level, "
    "but "
    "they do not stand out more.",
    consequence="Tell a concentrated rho from a vanishing one: look at an index of its shape as well as at a level.",
    changes_our_mind="A measure of concentration that rises in all six cases.",
    no_perturbation="It states a direction and no number.",
    mutation=becomes("fails", "eta decreasing", etas=(2.0, 1.0, 0.5, 0.1)),
)
def concentrates(run: AuditRun, etas: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0)) -> Evidence:
    """The share of positions with rho > 0.1 and the index of localisation, eta = 0.1 to 2, xi = 5, 8 and 12.

    The index does not change when rho is scaled (0: all tokens alike, 1: one token).
    Holds if the share falls at every step and the index rises from end to end in all cases, with either variance;
    under a condition if the share does.
    """
    shares, indices = {}, {}
    for form in FORMS:
        for xi in (5.0, 8.0, 12.0):
            curves = [signal_propagation(THETA, xi, eta, form) for eta in etas]
            shares[form, xi] = [float((rho > 0.1).mean()) for rho in curves]
            indices[form, xi] = [float(localisation(torch.as_tensor(rho))) for rho in curves]
    falls = [all(b <= a + ROUNDING for a, b in itertools.pairwise(row)) and row[-1] < row[0] for row in shares.values()]
    rises = [row[-1] > row[0] for row in indices.values()]
    printed = indices["as_printed", 5.0]
    rows = [
        (e, v, f"xi = {xi:g}")
        for (form, xi), row in shares.items()
        if form == "corrected"
        for e, v in zip(etas, row, strict=True)
    ]
    return Evidence(
        judge(all(falls) and all(rises), all(falls)),
        f"From eta = {etas[0]:g} to {etas[-1]:g} the share of positions with rho above 0.1 falls in {sum(falls)} of "
        f"{len(falls)} cases (three xi, both variances); the index of localisation rises in {sum(rises)}. With the "
        f"printed variance at xi = 5 it goes from {printed[0]:.2f} to {printed[-1]:.2f}.",
        {
            f"localisation, xi = {xi:g}, {form.replace('_', ' ')}": f"{row[0]:.2f} to {row[-1]:.2f}"
            for (form, xi), row in indices.items()
        },
        Plot("eta", "share of positions", rows),
    )


@claim(
    "localization-fig2-uniform",
    "Section 4, Figure 2, localisation",
    "For |xi| of at most 1, rho behaves relatively uniformly whatever eta is.",
    corrected="Uniform for xi near 0 and eta below about 0.5. At xi = 0 and a large eta the middle propagates up to "
    "sqrt(7) = 2.6 times as often as the ends, at |xi| = 1 one end up to 3.4 times as often as the other.",
    consequence="More uniform than at |xi| of 5 and more, but not uniform; see Lemma 2, item 3.",
    changes_our_mind="A reading of relatively uniform that allows a ratio of 3.4.",
    no_perturbation="It states a tendency; the number for uniform is ours.",
    mutation=becomes("holds", "xi = 0 and eta = 0.2 only", etas=(0.2,), xis=(0.0,)),
)
def small_xi(
    run: AuditRun, etas: tuple[float, ...] = (0.2, 1.0, 2.0, 4.0), xis: tuple[float, ...] = (-1.0, 0.0, 1.0)
) -> Evidence:
    """The largest rho over the smallest, with either variance factor.

    Holds if it is below 1.5, taken for "relatively uniform", in all cases; under a condition if in some.
    """
    ratios = {
        (form, xi, eta): _contrast(xi, eta, form)
        for form in FORMS for xi in xis for eta in etas
    }  # fmt: skip
    uniform = [ratio < 1.5 for ratio in ratios.values()]
    return Evidence(
        judge(all(uniform), any(uniform)),
        f"Largest over smallest rho, corrected variance, xi = {max(xis):g}: "
        + ", ".join(f"{ratios['corrected', max(xis), eta]:.2f} at eta = {eta:g}" for eta in etas)
        + f"; below 1.5 in {sum(uniform)} of {len(uniform)} cases (|xi| up to 1, both variances). At xi = 5 it is "
        f"{_contrast(5.0, 1.0, 'corrected'):.3g} at eta = 1.",
        {f"xi = {xi:g}, eta = {eta:g}, {form.replace('_', ' ')}": v for (form, xi, eta), v in ratios.items()},
    )


def _contrast(xi: float, eta: float, form: Form) -> float:
    rho = signal_propagation(THETA, xi, eta, form)
    return float(rho.max() / rho.min())


def _centre(xi: float, eta: float) -> float:
    rho = signal_propagation(THETA, xi, eta)
    return float((rho * THETA).sum() / rho.sum())


@claim(
    "localization-fig2-sites",
    "Section 4, Figure 2, late-, middle- and early-site focus",
    "At a small eta a large xi focuses on late tokens and a large negative xi on early ones; at eta = 0.5 and more, "
    "|xi| of 5 and more focuses on the middle.",
    corrected="The three regimes are there, with the corrected variance too. The middle needs xi eta well above 2: at "
    "xi = 5, eta = 0.5 the tokens from 1/2 to 0.9 propagate.",
    consequence="Read the focus off xi eta = tr(W)/lambda, not off xi and eta apart.",
    changes_our_mind="A reading of middle that includes a centre of mass at 0.7.",
    no_perturbation="It states where the focus is; the numbers for late, early and middle are ours.",
    mutation=becomes("fails", "the sign of xi exchanged", late=-8.0),
)
def sites(run: AuditRun, late: float = 8.0) -> Evidence:
    """The centre of mass of rho: late and early at xi = 8 and -8, middle at xi eta = 8 and at the stated edge, 2.5.

    Holds if it is above 0.65 (late), below 0.35 (early) and within 0.12 of 1/2 (middle); under a condition if all but
    the edge are so.
    """
    ends = {"late: eta = 0.001": _centre(late, 0.001), "early: eta = 0.001": _centre(-late, 0.001)}
    middle = {f"xi = {xi:g}, eta = 1": _centre(xi, 1.0) for xi in (8.0, -8.0)}
    edge = {f"xi = {xi:g}, eta = 0.5": _centre(xi, 0.5) for xi in (5.0, -5.0)}
    first, last = ends.values()
    sided = first > 0.65 and last < 0.35 and all(abs(value - 0.5) < 0.12 for value in middle.values())
    centres = {**ends, **middle, **edge}
    return Evidence(
        judge(sided and all(abs(value - 0.5) < 0.12 for value in edge.values()), sided),
        "Centre of rho: " + ", ".join(f"{v:.2f} ({k})" for k, v in centres.items()) + ".",
        centres,
    )


@claim(
    "localization-fig2-caption",
    "Section 4, caption of Figure 2",
    "eta = sqrt(tr(W^2))/lambda^2.",
    corrected="sqrt(tr(W^2))/lambda, as in the text and as Lemma 1's variance needs.",
    consequence="A slip of the pen.",
    root="localization-fig2-caption",
    changes_our_mind="A definition of eta by which Lemma 1's variance is c eta^2 with lambda^2.",
    perturbation=Perturbation(lambda factor: {"power": 1, "factor": factor}),
    mutation=becomes("holds", "lambda", power=1),
)
def caption_2(run: AuditRun, power: int = 2, factor: float = 1.0) -> Evidence:
    """The variance c eta^2 against that of the traces, for lambda = 3.

    Holds if they agree to 1e-9.
    """
    square, temperature = 2.0, 3.0
    eta = factor * math.sqrt(square) / temperature**power
    stated = float(propagation_variance(0.3, eta))
    exact = float(propagation_variance(0.3, qk_statistics(np.eye(2), temperature=temperature).eta))
    return Evidence(
        judge(abs(stated / exact - 1) < ROUNDING),
        f"With lambda = 3 the variance would be {stated / exact:.3g} times the right one.",
        {"stated variance": stated, "right variance": exact},
    )


@claim(
    "localization-fig3-eta",
    "Section 4, Figure 3 and the text on it",
    "For xi = 512 the product xi eta is 5.12 at eta = 0.02.",
    corrected="At eta = 0.01, which the caption's two products also imply.",
    consequence="A slip of the pen; `reproduce localization-fig3` takes 0.01.",
    root="localization-fig3-eta",
    changes_our_mind="A xi of Figure 3 other than 128 and 512, with which 0.02 gives 5.12.",
    perturbation=Perturbation(lambda factor: {"eta": 0.01 * factor}),
    mutation=becomes("holds", "eta = 0.01", eta=0.01),
)
def figure_3(run: AuditRun, eta: float = 0.02) -> Evidence:
    """Arithmetic with the three numbers of the text, which are typed in.

    Holds if the product is right to 1e-9.
    """
    product = 512.0 * eta
    return Evidence(judge(abs(product - 5.12) < 1e-9), f"512 x {eta:g} = {product:g}.", {"product": product})


@claim(
    "localization-fig3-width",
    "Section 4, Figure 3 with Eq. 5 (implied, not printed)",
    "xi = 128 and 512, the values of Figure 3, are within reach of a network like that of the experiments (d = 128).",
    corrected="|xi| <= sqrt(d), so they need widths of 16,384 and 262,144. At d = 128, r = 4 comes with eta of at "
    "least 0.354.",
    survives=False,
    consequence="The limits of Lemma 2 are out of reach at ordinary widths; transitions are blurred.",
    root="localization-fig3-width",
    changes_our_mind="Networks of width 16,384 or 262,144, where such xi exist.",
    no_perturbation="It compares typed-in values with Eq. 5 and has no formula of its own.",
    mutation=becomes("holds", "xi = 8", xis=(8.0,)),
)
def reachable(run: AuditRun, xis: tuple[float, ...] = (128.0, 512.0)) -> Evidence:
    """The largest xi of a 128 by 128 matrix is that of the identity; the figure's xi are typed in.

    Holds if none of the stated xi is larger.
    """
    largest = qk_statistics(np.eye(128)).xi
    return Evidence(
        judge(max(xis) <= largest),
        f"The largest xi at d = 128 is {largest:.1f}; the figure has {', '.join(f'{x:g}' for x in xis)}, which need "
        f"widths of {', '.join(f'{x * x:,.0f}' for x in xis)}.",
        {"largest xi at d = 128": largest, "width needed": max(xis) ** 2},
    )


def _at_bound(width: int) -> float:
    return math.sqrt(width)


@claim(
    "localization-larger-width",
    "Section 4, limiting condition",
    "A larger embedding dimension d helps attention to localise, because the trace can stay away from zero while every "
    "eigenvalue goes to zero.",
    consequence="At a fixed tr(W)/lambda the edges of the propagating region sharpen like 1/sqrt(d).",
    changes_our_mind="Equal eigenvalues and a fixed r for which the edges do not sharpen with d.",
    no_perturbation="It states a direction and no number.",
    mutation=becomes("fails", "xi that does not grow with d", xi=lambda width: 8.0),
)
def larger_width(run: AuditRun, xi: Callable[[int], float] = _at_bound) -> Evidence:
    """How fast rho rises through theta = 1/2 at r = 4, for equal eigenvalues.

    Holds if the rise at the largest d takes less than 0.6 of that at the smallest.
    """
    widths = (64, 256, 1024)
    rises = []
    for width in widths:
        size = xi(width)
        rho = signal_propagation(THETA, size, 4.0 / size)
        rises.append(float(THETA[np.argmax(rho > 0.8)] - THETA[np.argmax(rho > 0.2)]))
    return Evidence(
        judge(rises[-1] < 0.6 * rises[0]),
        "rho goes from 0.2 to 0.8 within "
        + ", ".join(f"{v:.3f} (d = {w})" for w, v in zip(widths, rises, strict=True))
        + ".",
        {f"rise, d = {w}": v for w, v in zip(widths, rises, strict=True)},
    )


@claim(
    "localization-spectrum-words",
    "Section 4, limiting condition",
    "The eigenvalues are drawn from a distribution with mean tr(W) and scale tr(W^2).",
    corrected="These are sums: the mean is tr(W)/d and the mean square tr(W^2)/d.",
    consequence='"Mean" and "scale" of the spectrum in the paper are d times what the words say.',
    root="localization-spectrum-words",
    changes_our_mind="A definition of mean and scale as sums.",
    perturbation=Perturbation(lambda factor: {"divisor": lambda width: factor * width}),
    mutation=becomes("holds", "divided by d", divisor=lambda width: float(width)),
)
def words(run: AuditRun, divisor: Callable[[int], float] = lambda width: 1.0) -> Evidence:
    """Sample mean and mean square of eigenvalues against the stated ones.

    Holds if they agree.
    """
    eigenvalues = np.random.default_rng(run.seed).normal(0.3, 0.1, 128)
    stated = np.array([eigenvalues.sum(), (eigenvalues**2).sum()]) / divisor(len(eigenvalues))
    found = np.array([eigenvalues.mean(), (eigenvalues**2).mean()])
    return Evidence(
        judge(bool(np.allclose(stated, found))),
        f"128 eigenvalues of mean {found[0]:.3f}: the stated mean is {stated[0]:.3g}.",
        {"mean": float(found[0]), "stated mean": float(stated[0])},
    )


@claim(
    "localization-eq6-independent",
    "Section 4, after Eq. 6",
    "xi and eta can be chosen independently, within |xi| <= sqrt(d).",
    consequence="Right: scaling W_QK changes eta alone. At a fixed width eta is at least |r|/sqrt(d).",
    changes_our_mind="A pair (xi, eta) within the bound that no matrix has.",
    no_perturbation="It states that matrices exist and has no number but the bound of Eq. 5.",
    mutation=becomes("fails", "xi beyond sqrt(d)", xis=(20.0,)),
)
def independent(run: AuditRun, xis: tuple[float, ...] = (-10.0, 0.0, 5.0, 11.0)) -> Evidence:
    """Eigenvalues for given xi and eta at d = 128: a mean, and a zero-mean part of the size that is left.

    Holds if every pair has a matrix, to 1e-6.
    """
    width, worst, missing = 128, 0.0, 0
    signs = np.where(np.arange(width) % 2 == 0, 1.0, -1.0)
    for xi in xis:
        for eta in (0.01, 1.0, 100.0):
            rest = 1.0 - xi**2 / width
            if rest < 0.0:
                missing += 1
                continue
            values = eta * (xi / width + math.sqrt(rest / width) * signs)
            found = qk_statistics(np.diag(values), temperature=1.0)
            worst = max(worst, abs(found.xi - xi), abs(found.eta / eta - 1.0))
    return Evidence(
        judge(missing == 0 and worst < ROUNDING * 1e3),
        f"{missing} of {3 * len(xis)} pairs (xi, eta) have no W of width {width}; the others are met to {worst:.1e}.",
        {"pairs": 3 * len(xis), "without a matrix": missing, "largest deviation": worst},
    )
