"""Section 5: the lower bound of attention entropy (Eq. 9, Figure 4), and the simulation of Figure 5."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from scipy.stats import t as student

from uncollapse.metrics import entropy, localisation
from uncollapse.theory import (
    Band,
    Simulation,
    anisotropic_covariance,
    entropy_lower_bound,
    entropy_minimiser,
    generator,
    scores_norm_bound,
    simulate,
)
from uncollapse.theory.form import Array
from uncollapse.theory.random_walk import CONFIDENCE

from ...audit.claim import ROUNDING, SIGNIFICANT, AuditRun, Evidence, Plot, becomes, claim, judge
from ...figure import Size
from ..simulation import one_thread

Bound = Callable[[Array, int], Array]
NORMS = np.linspace(0.0, 20.0, 401)


def _printed(nu: Array, tokens: int) -> Array:
    return entropy_lower_bound(nu, tokens, "as_printed")


def _exact(nu: Array, tokens: int) -> Array:
    return entropy_lower_bound(nu, tokens)


def _curve(tokens: int) -> Plot:
    some = NORMS[::16]
    rows = [
        (float(nu), float(v), name)
        for name, bound in (("corrected", _exact), ("as printed", _printed))
        for nu, v in zip(some, bound(some, tokens), strict=True)
    ]
    return Plot("nu", "bound of the entropy", rows, rule=math.log(tokens), rule_says="log T")


@claim(
    "localization-eq9-bound",
    "Section 5, Eq. 9",
    "By Theorem 3.1 of Zhai et al. the attention entropy is at least ln(1 + T e^-nu) + nu e^(-nu/2)/(1/T + e^-nu), "
    "for large T.",
    corrected="log(1 + (T-1) b) + nu sqrt(T(T-1)) b/(1 + (T-1) b), b = exp(-nu sqrt(T/(T-1))): the theorem has "
    "e^-nu where Eq. 9 has e^(-nu/2). It is attained.",
    consequence="The printed form exceeds log T, which no entropy can. Use `entropy_lower_bound`.",
    mutation=becomes("holds", "the theorem's form", bound=_exact),
)
def eq_9(run: AuditRun, bound: Bound = _printed) -> Evidence:
    """Random layers, log T, and the scores that have the least entropy.

    Holds if it stays below log T for nu up to 20, below every layer and below those scores.
    """
    tokens = 64
    over = bound(NORMS, tokens) > math.log(tokens) * (1 + 1e-6)
    random, below, cases = generator(run.seed), 0, run.pick(400, 60)
    for _ in range(cases):
        size = 10.0 ** (3.0 * torch.rand(1, generator=random).item() - 2.0)
        x, qk = (torch.randn(n, m, dtype=torch.float64, generator=random) for n, m in ((16, 4), (4, 4)))
        spread = entropy((size * x @ qk @ x.T).softmax(dim=-1)).min().item()
        below += spread < float(bound(np.asarray(scores_norm_bound(x.T, size * qk, 1.0)), 16)) - ROUNDING
    least = min(
        float(entropy(torch.as_tensor(entropy_minimiser(nu, tokens)).softmax(dim=-1)))
        - float(bound(np.asarray(nu), tokens))
        for nu in (0.5, 2.0, 4.0, 8.0)
    )
    return Evidence(
        judge(not over.any() and below == 0 and least > -1e-9),
        f"T = 64, nu = 4: the bound is {float(bound(np.asarray(4.0), tokens)):.2f}, log T = {math.log(tokens):.2f}; "
        f"it exceeds log T for {over.mean():.0%} of nu up to 20, and {below} of {cases} random layers lie below it.",
        {
            "bound at nu = 4": float(bound(np.asarray(4.0), tokens)),
            "log T": math.log(tokens),
            "layers below": below,
            "layers": cases,
        },
        _curve(tokens),
    )


@claim(
    "localization-eq9-unimodal",
    "Section 5, after Eq. 9, and Figure 4",
    "The lower bound is unimodal in nu: it has a peak, near which attention entropy may be kept.",
    corrected="It falls all the way from log T to 0: its derivative is -D s (1 - s) with D = nu sqrt(T/(T-1)). The "
    "peak is an artefact of e^(-nu/2).",
    survives=False,
    consequence="No entropy reason remains to keep ||W_QK||_2 away from zero; the peak and the hump of Figure 4 go.",
    mutation=becomes("holds", "the printed form", bound=_printed),
)
def unimodal(run: AuditRun, bound: Bound = _exact) -> Evidence:
    """Whether the theorem's bound rises anywhere.

    Holds if the largest value lies at nu > 0.1 for every T.
    """
    peaks = {}
    for tokens in (16, 64, 256, 4096):
        values = bound(NORMS, tokens)
        peaks[tokens] = float(NORMS[int(values.argmax())])
    return Evidence(
        judge(all(peak > 0.1 for peak in peaks.values())),
        "The largest value is at nu = " + ", ".join(f"{nu:.2g} (T = {t})" for t, nu in peaks.items()) + ".",
        {f"peak, T = {t}": nu for t, nu in peaks.items()},
        _curve(64),
    )


@claim(
    "localization-eq9-vanishes",
    "Section 5, after Eq. 9",
    "The lower bound vanishes as ||W_QK||_2 goes to infinity, so that entropy tends to be higher when it is small.",
    consequence="This half of the argument stands: smaller query-key weights guarantee more entropy, most at zero.",
    mutation=becomes(
        "fails", "a bound with a floor of one nat", bound=lambda nu, tokens: np.maximum(1.0, _exact(nu, tokens))
    ),
)
def vanishes(run: AuditRun, bound: Bound = _exact) -> Evidence:
    """Far out, and against small nu.

    Holds if it is below 1e-6 at nu = 100 and above it at nu = 0.5.
    """
    far, near = float(bound(np.asarray(100.0), 64)), float(bound(np.asarray(0.5), 64))
    return Evidence(
        judge(far < 1e-6 < near),
        f"T = 64: {near:.2f} nats at nu = 0.5, {far:.1e} at nu = 100.",
        {"nu = 0.5": near, "nu = 100": far},
    )


@claim(
    "localization-eq9-temperature",
    "Section 5, nu below Eq. 9",
    "nu = ||X X'||_2 ||W_QK||_2 bounds the scores.",
    corrected="nu = ||X X'||_2 ||W_QK||_2/lambda. Without 1/lambda it is a bound where lambda >= 1, and a needlessly "
    "loose one.",
    consequence="`scores_norm_bound` divides by the temperature.",
    mutation=becomes("holds", "divided by lambda", divided=True),
)
def temperature(run: AuditRun, divided: bool = False) -> Evidence:
    """Norms of score columns against nu, at several temperatures.

    Holds if no case exceeds nu; under a condition if none does at a temperature of 1 and more.
    """
    random, broken = generator(run.seed), {}
    for heat in (0.25, 1.0, 4.0):
        broken[heat] = 0
        for _ in range(run.pick(300, 60)):
            x, qk = (torch.randn(4, n, dtype=torch.float64, generator=random) for n in (8, 4))
            x[:, 1:] *= 0.1  # one long token, where the bound is nearly attained
            qk = torch.outer(x[:, 0], x[:, 0]) + 0.01 * qk
            size = (x.T @ qk @ x / heat).norm(dim=0).max().item()
            broken[heat] += size > scores_norm_bound(x, qk, heat if divided else 1.0) * (1 + ROUNDING)
    return Evidence(
        judge(not any(broken.values()), broken[1.0] == 0 and broken[4.0] == 0),
        "Scores exceed nu in " + ", ".join(f"{n} cases at lambda = {h:g}" for h, n in broken.items()) + ".",
        {f"exceeded, lambda = {h:g}": n for h, n in broken.items()},
    )


MEANS, SCALES = (0.0, 0.01, 0.1, 0.3), (0.01, 0.1, 0.3, 1.0)
FIXED_MEAN, FIXED_SCALE = 0.1, 0.01


@cache
def _simulated(size: Size, seed: int, anisotropic: bool = False) -> dict[tuple[float, float], Simulation]:
    """Figure 5's simulation along one line of means and one of scales."""
    spectra = [(mean, FIXED_SCALE) for mean in MEANS] + [(FIXED_MEAN, scale) for scale in SCALES[1:]] + [(0.0, 0.3)]
    width, tokens, walks, draws = (128, 40, 300, 10) if size == "full" else (64, 20, 60, 4)
    covariance = anisotropic_covariance(width, generator(seed)) if anisotropic else None
    with one_thread():
        runs = simulate(spectra, width=width, tokens=tokens, walks=walks, draws=draws, covariance=covariance, seed=seed)
    return {(own.mean, own.scale): own for own in runs}


def _error(band: Band, draws: int) -> float:
    """The largest standard error of a mean over draws of W_QK, from its confidence interval."""
    return float(np.max(band.high - band.low)) / 2.0 / float(student.ppf(0.5 + CONFIDENCE / 2.0, draws - 1))


def _index(own: Simulation) -> float:
    return float(localisation(torch.as_tensor(own.rho.mean)))


def _entropies(runs: Sequence[Simulation]) -> tuple[list[float], float]:
    """Mean entropies of the last query, and the largest standard error."""
    values = [float(own.last_entropy.mean) for own in runs]
    return values, max(_error(own.last_entropy, len(own.statistics)) for own in runs)


@claim(
    "localization-fig5-localises",
    "Section 5, numerical simulation, Figure 5, left",
    "rho localises with a smaller scale and a larger mean of the eigenvalues.",
    consequence="Right in simulation.",
    mutation=becomes("fails", "smaller means", means=MEANS[::-1]),
    monte_carlo=True,
)
def localises(run: AuditRun, means: tuple[float, ...] = MEANS) -> Evidence:
    """The index of localisation (0: all tokens alike, 1: one token) of simulated rho over means and over scales.

    Holds if it is more than 0.2 larger at the last mean than at the first, and at the smallest scale than at the
    largest.
    """
    every = _simulated(run.size, run.seed)
    runs = [every[mean, FIXED_SCALE] for mean in means]
    index = [_index(own) for own in runs]
    narrow, wide = (_index(every[FIXED_MEAN, scale]) for scale in (SCALES[0], SCALES[-1]))
    error = max(_error(own.rho, len(own.statistics)) for own in runs)
    rows = [(n / len(own.rho.mean), float(v), f"mean {own.mean:g}") for own in runs
            for n, v in enumerate(own.rho.mean, start=1)]  # fmt: skip
    return Evidence(
        judge(index[-1] > index[0] + 0.2 and narrow > wide + 0.2),
        f"Index of localisation at scale {FIXED_SCALE:g}: "
        + ", ".join(f"{v:.2f} at mean {m:g}" for m, v in zip(means, index, strict=True))
        + f"; at mean {FIXED_MEAN:g}: {narrow:.2f} at scale {SCALES[0]:g}, {wide:.2f} at scale {SCALES[-1]:g} "
        f"(standard error of rho at most {error:.2f}).",
        {f"mean {m:g}": v for m, v in zip(means, index, strict=True)} | {"smallest scale": narrow, "largest": wide},
        Plot("position", "rho", rows),
        standard_error=error,
    )


@claim(
    "localization-rho-uniform",
    "Section 3, uniform softmax",
    "If rho takes similar values at all tokens, most of the tokens contribute to self-attention almost equally.",
    corrected="Where the scores are small. With a zero mean and scale 0.3 of the eigenvalues, rho is nearly the same "
    "everywhere "
    "while attention is far from uniform: the entry that is tested against 0 and 1 is a score, not a weight.",
    survives=False,
    consequence="Uniform propagation is not uniform attention. Look at the entropy of attention itself.",
    mutation=becomes("holds", "scale 0.01", scale=0.01),
    monte_carlo=True,
)
def uniform_rho(run: AuditRun, scale: float = 0.3) -> Evidence:
    """Figure 5's simulation with eigenvalues of mean 0: index of localisation of rho, entropy of the last query.

    Holds if, with an index below 0.1 (similar values), the entropy is above nine tenths of log T (less five standard
    errors).
    """
    own = _simulated(run.size, run.seed)[0.0, scale]
    [value], error = _entropies([own])
    top, index = math.log(len(own.rho.mean)), _index(own)
    return Evidence(
        judge(index >= 0.1 or value > 0.9 * top - SIGNIFICANT * error),
        f"rho is {own.rho.mean.min():.2f} to {own.rho.mean.max():.2f} (index of localisation {index:.3f}), the entropy "
        f"{value:.2f} of {top:.2f} nats (standard error {error:.2f}).",
        {"index of localisation": index, "entropy": value, "log T": top},
        standard_error=error,
    )


@claim(
    "localization-A2-entropy",
    'Section 5, summary A2, and "rank collapse against entropy collapse"',
    "Localised attention, a concentrated spectrum with a mean away from zero, comes with high attention entropy.",
    corrected="Entropy falls as the mean grows, while rho becomes more and more localised. Only the scale's half "
    "holds: see localization-fig5-scale.",
    survives=False,
    consequence="Localisation in the paper's sense does not protect from entropy collapse; a large trace brings it on.",
    mutation=becomes("holds", "a mean of 0", means=(0.0,)),
    monte_carlo=True,
)
def high_entropy(run: AuditRun, means: tuple[float, ...] = MEANS) -> Evidence:
    """The entropy of the last query at the smallest scale, in the paper's own simulation.

    Holds if the entropy is above nine tenths of log T at every mean (less five standard errors).
    """
    runs = _simulated(run.size, run.seed)
    values, error = _entropies([runs[mean, FIXED_SCALE] for mean in means])
    top = math.log(len(runs[means[0], FIXED_SCALE].rho.mean))
    return Evidence(
        judge(min(values) > 0.9 * top - SIGNIFICANT * error),
        "Entropy: " + ", ".join(f"{v:.2f} at mean {m:g}" for m, v in zip(means, values, strict=True))
        + f", of at most {top:.2f} nats (standard error {error:.2f}); high is taken as nine tenths of that.",
        {f"mean {m:g}": v for m, v in zip(means, values, strict=True)},
        Plot("mean of the eigenvalues", "entropy of the last query",
             [(m, v, "entropy") for m, v in zip(means, values, strict=True)], rule=top, rule_says="log T"),
        standard_error=error,
    )  # fmt: skip


@claim(
    "localization-sec8-maximising",
    "Section 8",
    "Maximising the scale of the spectrum is related to mitigating both rank collapse and entropy collapse.",
    corrected="Minimising, as everywhere else in the paper.",
    consequence="A slip of the pen. Tested on the half about entropy.",
    mutation=becomes("holds", "minimising", direction=-1.0),
    changes={"direction": 1.0},
    monte_carlo=True,
)
@claim(
    "localization-fig5-scale",
    "Section 5, numerical simulation, Figure 5, right, and summary A2, second item",
    "At a fixed mean, a smaller scale of the eigenvalues leads to a higher attention entropy.",
    consequence="Right; it is flat at small scales and falls at large ones. (The sentence in the text lacks the word "
    '"smaller".)',
    mutation=becomes("fails", "a larger scale", direction=1.0),
    changes={"direction": -1.0},
    monte_carlo=True,
)
def scale(run: AuditRun, direction: float) -> Evidence:
    """The entropy of the last query at mean 0.1 and the largest scale against the smallest.

    Holds if it changes in the stated direction by more than five standard errors of the difference.
    """
    runs = _simulated(run.size, run.seed)
    values, _ = _entropies([runs[FIXED_MEAN, own] for own in SCALES])
    change = values[-1] - values[0]
    ends = [runs[FIXED_MEAN, own].last_entropy for own in (SCALES[0], SCALES[-1])]
    error = math.hypot(*(_error(band, len(runs[FIXED_MEAN, SCALES[0]].statistics)) for band in ends))
    return Evidence(
        judge(direction * change > SIGNIFICANT * error),
        "Entropy at mean 0.1: " + ", ".join(f"{v:.2f} at scale {s:g}" for s, v in zip(SCALES, values, strict=True))
        + f": from the smallest to the largest it changes by {change:+.2f} (standard error {error:.2f}).",
        {f"scale {s:g}": v for s, v in zip(SCALES, values, strict=True)},
        Plot("scale of the eigenvalues", "entropy of the last query",
             [(s, v, "entropy") for s, v in zip(SCALES, values, strict=True)], log_x=True),
        standard_error=error,
    )  # fmt: skip


@claim(
    "localization-fig5-proxy",
    "Section 5, numerical simulation, anisotropic covariance",
    "The spectrum of W_QK is a proxy for that of W = W_QK Sigma: the trend is the same with an anisotropic Sigma.",
    consequence="Right for the covariance of the paper; a covariance with few large eigenvalues was not tried there.",
    mutation=becomes("fails", "means in the opposite order for one of the two", reverse=True),
    monte_carlo=True,
)
def proxy(run: AuditRun, reverse: bool = False) -> Evidence:
    """Localisation over the means with both covariances.

    Holds if the correlation over the four means exceeds 0.8.
    """
    rows, indices, error = [], {}, 0.0
    for name, anisotropic in (("isotropic", False), ("anisotropic", True)):
        runs = _simulated(run.size, run.seed, anisotropic)
        own = [_index(runs[mean, FIXED_SCALE]) for mean in MEANS]
        error = max(error, *(_error(each.rho, len(each.statistics)) for each in runs.values()))
        indices[name] = own[::-1] if reverse and anisotropic else own
        rows += [(m, v, name) for m, v in zip(MEANS, indices[name], strict=True)]
    agree = float(np.corrcoef(indices["isotropic"], indices["anisotropic"])[0, 1])
    return Evidence(
        judge(agree > 0.8),
        f"Localisation over four means correlates by {agree:.2f} between the two covariances (standard error of rho "
        f"at most {error:.2f}).",
        {"correlation": agree, "anisotropic, largest mean": indices["anisotropic"][-1]},
        Plot("mean of the eigenvalues", "localisation", rows),
        standard_error=error,
    )
