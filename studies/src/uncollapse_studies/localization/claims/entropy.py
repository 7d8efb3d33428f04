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
    qk_matrix,
    random_walks,
    scores_norm_bound,
    simulate,
)
from uncollapse.theory.form import Array
from uncollapse.theory.random_walk import CONFIDENCE

from ...audit.claim import ROUNDING, SIGNIFICANT, AuditRun, Evidence, Perturbation, Plot, becomes, judge, times
from ...figure import Size
from ..simulation import one_thread
from .sources import claim

Bound = Callable[[Array, int], Array]
NORMS = np.linspace(0.0, 20.0, 401)


def _printed(nu: Array, tokens: int) -> Array:
    return entropy_lower_bound(nu, tokens, "as_printed")


def _exact(nu: Array, tokens: int) -> Array:
    return entropy_lower_bound(nu, tokens)


def _limit(nu: Array, tokens: int) -> Array:
    """Eq. 9 with the theorem's e^-nu: the exact bound but for terms that vanish as T grows."""
    small = np.exp(-nu)
    found: Array = np.log1p(tokens * small) + nu * small / (1.0 / tokens + small)
    return found


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
    survives=False,
    consequence="The printed form exceeds log T, which no entropy can. Use `entropy_lower_bound`.",
    root="localization-eq9",
    changes_our_mind="A T from which the printed form stays within a hundredth of a nat of the least entropy.",
    perturbation=Perturbation(lambda factor: {"bound": times(factor, _limit)}, factors=(1.2,)),
    mutation=becomes("holds", "the theorem's form", bound=_exact),
)
def eq_9(run: AuditRun, bound: Bound = _printed) -> Evidence:
    """Against the least entropy that scores of norm nu can have, nu from 0 to 20, and against random layers.

    Holds if it exceeds the least entropy by less than 0.01 nats, taken for o(1), at T = 4,096 and by less at a larger
    T, and random layers of 256 tokens by no more than it exceeds the least entropy there, 0.1 at most.
    """
    attained = [float(entropy(torch.as_tensor(entropy_minimiser(nu, 64)).softmax(dim=-1))) for nu in (0.5, 2.0, 8.0)]
    if not np.allclose(attained, _exact(np.array([0.5, 2.0, 8.0]), 64), rtol=1e-6):
        raise ArithmeticError("the least entropy is not that of the scores that should have it.")
    excess = {t: max(0.0, float((bound(NORMS, t) - _exact(NORMS, t)).max())) for t in (64, 256, 4096, 2**20)}
    random, below, cases = generator(run.seed), 0, run.pick(400, 60)
    for _ in range(cases):
        size = 10.0 ** (3.0 * torch.rand(1, generator=random).item() - 2.0) / 16.0
        x, qk = (torch.randn(n, m, dtype=torch.float64, generator=random) for n, m in ((256, 4), (4, 4)))
        spread = entropy((size * x @ qk @ x.T).softmax(dim=-1)).min().item()
        stated = float(bound(np.asarray(scores_norm_bound(x.T, size * qk, 1.0)), 256))
        below += spread < stated - min(excess[256], 0.1) - ROUNDING
    small = excess[4096] < 0.01 and excess[2**20] <= excess[4096] <= excess[256]
    return Evidence(
        judge(small and below == 0),
        f"T = 64, nu = 4: the bound is {float(bound(np.asarray(4.0), 64)):.2f}, and no entropy exceeds log T = "
        f"{math.log(64):.2f}. It exceeds the least entropy by up to "
        + ", ".join(f"{over:.3g} at T = {t:,}" for t, over in excess.items())
        + f"; {below} of {cases} random layers lie below it.",
        {
            "bound at nu = 4": float(bound(np.asarray(4.0), 64)),
            "log T": math.log(64),
            **{f"excess over the least entropy, T = {t}": over for t, over in excess.items()},
            "layers below": below,
            "layers": cases,
        },
        _curve(64),
    )


@claim(
    "localization-eq9-unimodal",
    "Section 5, after Eq. 9, and Figure 4",
    "The lower bound of Zhai et al. is unimodal in nu: it has a peak, near which attention entropy may be kept.",
    corrected="Eq. 9 as printed has a peak, an artefact of e^(-nu/2); the theorem's bound has none. It falls all the "
    "way from log T to 0: its derivative is -D s (1 - s) with D = nu sqrt(T/(T-1)).",
    survives=False,
    consequence="No entropy reason remains to keep ||W_QK||_2 away from zero; the peak and the hump of Figure 4 go.",
    root="localization-eq9",
    changes_our_mind="A T at which the theorem's own bound rises somewhere.",
    no_perturbation="It is about the shape of a curve, which a factor does not change.",
    mutation=becomes("holds", "the printed form", bound=_printed),
)
def unimodal(run: AuditRun, bound: Bound = _exact) -> Evidence:
    """The theorem's own bound, which Eq. 9 is said to be: whether it rises anywhere.

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
    changes_our_mind="A bound that stays above 0 for large nu.",
    no_perturbation="It states a limit of 0, which no factor changes.",
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
    changes_our_mind="A convention of the paper by which lambda is 1 in Section 5.",
    perturbation=Perturbation(lambda factor: {"divided": True, "factor": factor}, factors=(0.8,)),
    mutation=becomes("holds", "divided by lambda", divided=True),
)
def temperature(run: AuditRun, divided: bool = False, factor: float = 1.0) -> Evidence:
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
            broken[heat] += size > factor * scores_norm_bound(x, qk, heat if divided else 1.0) * (1 + ROUNDING)
    return Evidence(
        judge(not any(broken.values()), broken[1.0] == 0 and broken[4.0] == 0),
        "Scores exceed nu in " + ", ".join(f"{n} cases at lambda = {h:g}" for h, n in broken.items()) + ".",
        {f"exceeded, lambda = {h:g}": n for h, n in broken.items()},
    )


MEANS, SCALES = (0.0, 0.01, 0.1, 0.3), (0.01, 0.1, 0.3, 1.0)
FIXED_MEAN, FIXED_SCALE = 0.1, 0.01
LARGE_MEANS = (0.3, 0.5)  # at which the scale is varied as well


@cache
def _simulated(size: Size, seed: int, anisotropic: bool = False) -> dict[tuple[float, float], Simulation]:
    """Figure 5's simulation along one line of means and three of scales."""
    lines = [(mean, scale) for mean in (FIXED_MEAN, *LARGE_MEANS) for scale in SCALES]
    spectra = list(dict.fromkeys([*((mean, FIXED_SCALE) for mean in MEANS), *lines, (0.0, 0.3)]))
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
    changes_our_mind="A repetition of the simulation in which the index does not rise by 0.2.",
    no_perturbation="It states a direction; the number 0.2 is ours.",
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
    corrected="Where the scores are small. With a zero mean and scale 0.3 of the eigenvalues, where the paper calls "
    "rho uniform, each query attends to a few tokens, and on the mean over walks the first and last tokens get about "
    "ten times the attention of the middle: the entry that is tested against 0 and 1 is a score, not a weight.",
    survives=False,
    consequence="Uniform propagation is not uniform attention. Look at the entropy of attention itself.",
    root="localization-rho-not-attention",
    changes_our_mind="A simulation under Assumption 1 with similar rho in which attention is uniform although the "
    "scores are large.",
    no_perturbation="It states that weights are alike; the numbers for similar and almost equally are ours.",
    mutation=becomes("holds", "scale 0.01", scale=0.01),
    monte_carlo=True,
)
def uniform_rho(run: AuditRun, scale: float = 0.3) -> Evidence:
    """Figure 5's simulation with eigenvalues of mean 0: rho, and the attention of the last query.

    Holds if, with an index of localisation of rho below 0.1 (similar values), attention is almost equal in either
    sense: the mean entropy is above nine tenths of log T (less five standard errors), or the position with the most
    attention on the mean over walks gets less than twice that with the least.
    """
    own = _simulated(run.size, run.seed)[0.0, scale]
    [value], error = _entropies([own])
    top, index, contrast = math.log(len(own.rho.mean)), _index(own), _attention_contrast(run, scale)
    return Evidence(
        judge(index >= 0.1 or value > 0.9 * top - SIGNIFICANT * error or contrast < 2.0),
        f"rho is {own.rho.mean.min():.2f} to {own.rho.mean.max():.2f} (index of localisation {index:.3f}), the entropy "
        f"{value:.2f} of {top:.2f} nats (standard error {error:.2f}). On the mean over walks the most attended "
        f"position gets {contrast:.1f} times as much as the least attended one.",
        {"index of localisation": index, "entropy": value, "log T": top, "most over least attention": contrast},
        standard_error=error,
    )


def _attention_contrast(run: AuditRun, scale: float) -> float:
    """The largest over the smallest attention of the last query by position, on the mean over walks and draws."""
    width, tokens, walks, draws = (128, 40, 300, 10) if run.size == "full" else (64, 20, 200, 4)
    random, total = generator(run.seed), torch.zeros(tokens, dtype=torch.float64)
    for _ in range(draws):
        matrix, walk = qk_matrix(width, 0.0, scale, random), random_walks(walks, tokens, width, random)
        scores = (walk @ matrix @ walk[:, -1].unsqueeze(-1)).squeeze(-1) / math.sqrt(width)
        total += scores.softmax(dim=-1).mean(dim=0)
    return float(total.max() / total.min())


@claim(
    "localization-sec8-maximising",
    "Section 8",
    "Maximising the scale of the spectrum is related to mitigating both rank collapse and entropy collapse.",
    corrected="Minimising, as everywhere else in the paper.",
    consequence="A slip of the pen. Tested on the half about entropy, at the mean 0.1.",
    root="localization-sec8",
    changes_our_mind="A passage of the paper that argues for a large scale.",
    no_perturbation="It states a direction and no number.",
    mutation=becomes("holds", "minimising", direction=-1.0),
    changes={"direction": 1.0, "means": (FIXED_MEAN,)},
    monte_carlo=True,
)
@claim(
    "localization-A2-entropy",
    "Section 5, summary A2, second item, and Figure 5, right",
    "At a fixed mean of the eigenvalues away from zero, a smaller scale gives a higher attention entropy.",
    corrected="At the mean 0.1, between the smallest scale and the largest. At the means 0.3 and 0.5 the entropy is "
    "low at every scale and highest at the larger ones, and at 0.1 too a middle scale has more than the smallest.",
    consequence="A small scale does not keep attention entropy high where the mean is large: the mean decides.",
    changes_our_mind="A repetition of the simulation in which the smallest scale has the most entropy at the means 0.3 "
    "and 0.5 too.",
    no_perturbation="It states a direction and no number.",
    mutation=becomes("fails", "a larger scale at the mean 0.1", direction=1.0, means=(FIXED_MEAN,)),
    changes={"direction": -1.0},
    monte_carlo=True,
)
def scale(run: AuditRun, direction: float, means: tuple[float, ...] = (FIXED_MEAN, *LARGE_MEANS)) -> Evidence:
    """The entropy of the last query at the largest scale against the smallest, in the paper's own simulation.

    Holds if it changes in the stated direction by more than five standard errors of the difference at every mean;
    under a condition if at some.
    """
    runs, changes, errors, rows = _simulated(run.size, run.seed), {}, [], []
    for mean in means:
        ends = [runs[mean, own] for own in (SCALES[0], SCALES[-1])]
        values, _ = _entropies(ends)
        changes[mean] = values[1] - values[0]
        errors.append(math.hypot(*(_error(own.last_entropy, len(own.statistics)) for own in ends)))
        rows += [(own, float(runs[mean, own].last_entropy.mean), f"mean {mean:g}") for own in SCALES]
    met = [direction * change > SIGNIFICANT * own for change, own in zip(changes.values(), errors, strict=True)]
    return Evidence(
        judge(all(met), any(met)),
        f"From scale {SCALES[0]:g} to {SCALES[-1]:g} the entropy changes by "
        + ", ".join(f"{change:+.2f} at mean {mean:g}" for mean, change in changes.items())
        + f" (standard error at most {max(errors):.2f}).",
        {f"entropy, scale {x:g}, {name}": value for x, value, name in rows},
        Plot("scale of the eigenvalues", "entropy of the last query", rows, log_x=True),
        standard_error=max(errors),
    )


@claim(
    "localization-fig5-proxy",
    "Section 5, numerical simulation, anisotropic covariance",
    "The spectrum of W_QK is a proxy for that of W = W_QK Sigma: the trend is the same with an anisotropic Sigma.",
    consequence="Right for the covariance of the paper; a covariance with few large eigenvalues was not tried there.",
    changes_our_mind="A covariance, drawn as in the paper, with which the correlation falls below 0.8.",
    no_perturbation="It states that two trends agree; the number 0.8 is ours.",
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
