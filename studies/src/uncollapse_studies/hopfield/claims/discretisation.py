"""Appendix F: the differential equation behind the attention and its discretisations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from uncollapse.attention import AttentionOnly
from uncollapse.attention.discretisation import step_weight
from uncollapse.attention.network import AttentionLayer
from uncollapse.theory import HopfieldNetwork, generator

from ...audit.claim import ROUNDING, AuditRun, Evidence, Perturbation, Plot, becomes, judge, times
from .sources import claim

Update = Callable[[Tensor, Tensor, float], Tensor]  # old state, drive, rho -> new state


def _forward(old: Tensor, drive: Tensor, rho: float) -> Tensor:
    return (1.0 - rho) * old + rho * drive


def _backward(old: Tensor, drive: Tensor, rho: float) -> Tensor:
    return old / (1.0 + rho) + rho / (1.0 + rho) * drive


@claim(
    "hopfield-eq58-59-backward",
    "Appendix F.4, Eq. 58 and 59",
    "With backward differences both new states are (old + rho drive)/(1 + rho), the drive being that of the new layer.",
    consequence="Such a layer is a fixed point of itself; `AttentionOnly(scheme=('backward', 'backward'))` solves it.",
    perturbation=Perturbation(lambda factor: {"update": times(factor, _backward)}),
    changes_our_mind="An error in the algebra that leads from the difference equation to the solved form.",
    mutation=becomes("fails", "the weights 1 - rho and rho of a forward difference", update=_forward),
    changes={"update": _backward, "at_new": True},
)
@claim(
    "hopfield-eq55-57-mixed",
    "Appendix F.3, Eq. 55 to 57",
    "The backward difference of the visible state gives x = x/(1+rho) + rho/(1+rho) softmax(h) V of the new layer.",
    consequence="Right. A remark: the paper leaves the case aside, since V of the new layer needs the new tokens. The "
    "new scores are known beforehand, so that these solve a linear system, X - k P X W_V = X_n/(1+rho), k = "
    "rho/(1+rho).",
    perturbation=Perturbation(lambda factor: {"update": times(factor, _backward)}),
    changes_our_mind="An error in the algebra that leads from the difference equation to the solved form.",
    mutation=becomes("fails", "the weights 1 - rho and rho of a forward difference", update=_forward),
    changes={"update": _backward, "at_new": True},
)
@claim(
    "hopfield-eq52-54-mechanism",
    "Appendix F.2, Eq. 52 to 54",
    "The backward difference of the hidden state gives h = h/(1+rho') + rho'/(1+rho') q K^T, that is alpha' = "
    "1/(1+rho').",
    consequence="The mechanism follows from the equation; alpha = 1 - rho and alpha' = 1/(1+rho') differ in meaning.",
    perturbation=Perturbation(lambda factor: {"update": times(factor, _backward)}),
    changes_our_mind="An error in the algebra that leads from the difference equation to the solved form.",
    mutation=becomes("fails", "alpha' = 1 - rho'", update=_forward),
    changes={"update": _backward, "at_new": True},
)
@claim(
    "hopfield-eq47-51-forward",
    "Appendix F.1, Eq. 47 to 51",
    "The forward differences give x = (1-rho) x + rho softmax(h) V and h = (1-rho') h + rho' q K^T of the layer "
    "before.",
    consequence="Right; scores are one layer late, so it is no ordinary attention for any rho'.",
    perturbation=Perturbation(lambda factor: {"update": times(factor, _forward)}),
    changes_our_mind="An error in the algebra that leads from the difference equation to the solved form.",
    mutation=becomes("fails", "the weights 1/(1+rho) and rho/(1+rho)", update=_backward),
    changes={"update": _forward, "at_new": False},
)
def solved(run: AuditRun, update: Update, at_new: bool) -> Evidence:
    """The solved form must satisfy the difference equation (new - old)/rho = drive - state, for every rho.

    Holds if the equation is met to 1e-9.
    """
    random = generator(run.seed)
    errors, spellings = [], []
    for rho in (0.1, 0.5, 1.0, 2.0):
        old, drive = torch.randn(2, 50, dtype=torch.float64, generator=random)
        new = update(old, drive, rho)
        errors.append(((new - old) / rho - (drive - (new if at_new else old))).abs().max().item())
        alpha = step_weight("backward" if at_new else "forward", rho)  # what the library uses
        spellings.append((new - (alpha * old + (1.0 - alpha) * drive)).abs().max().item())
    return Evidence(
        judge(max(errors) < ROUNDING and max(spellings) < ROUNDING),
        f"The solved form satisfies the difference equation to {max(errors):.1e} for rho from 0.1 to 2.",
        {"largest residual": max(errors), "largest difference from the library's weights": max(spellings)},
    )


def _zero(first: Tensor) -> Tensor:
    return torch.zeros_like(first)


@claim(
    "hopfield-F1-adiabatic",
    "Appendix F.1, after Eq. 51",
    "In the limit rho' to infinity the hidden equation becomes 0 = h + q K^T.",
    corrected="0 = q K^T - h, that is h = q K^T. With the printed sign attention would go to the least similar keys.",
    consequence="A sign slip; that the limit is self-attention, as the paper says, is right.",
    root="hopfield-adiabatic-sign",
    perturbation=Perturbation(lambda factor: {"sign": -factor}),
    changes_our_mind="A convention in which h is minus the scores, which Eq. 46 does not have.",
    mutation=becomes("holds", "0 = q K^T - h", sign=-1.0),
)
def adiabatic(run: AuditRun, sign: float = 1.0) -> Evidence:
    """Follow the continuous network with an ever faster hidden state: which combination of h and q K^T goes to 0?

    Holds if the combination is below 1 % of q K^T with the fastest hidden state.
    """
    random = np.random.default_rng(run.seed)
    patterns, cue = random.standard_normal((4, 6)), random.standard_normal(6)
    sizes = {}
    for tau in (1e-1, 1e-2, 1e-3):
        network = HopfieldNetwork(patterns, beta=1.0, tau_hidden=tau)
        path = network.solve(cue, time=1.0, points=2)
        scores = network.scores(path.visible[-1])
        sizes[tau] = float(np.abs(sign * path.hidden[-1] + scores).max() / np.abs(scores).max())
    return Evidence(
        judge(sizes[1e-3] < 0.01),
        f"With a hidden state a thousand times faster than the visible one, the combination is {sizes[1e-3]:.2g} of "
        "q K^T; in the limit it should be 0.",
        {f"size at tau_h = {tau:g}": size for tau, size in sizes.items()},
    )


@claim(
    "hopfield-F1-rho-one",
    "Appendix F.1, after Eq. 51",
    "With forward differences and rho' = 1 one gets an attention score of 0.",
    corrected="h_n = q K^T of the layer before: the attention of layer n uses the scores of layer n - 1.",
    consequence="Forward differences give attention that is one layer late, not uniform attention.",
    root="hopfield-rho-one",
    perturbation=Perturbation(lambda factor: {"stated": lambda first: factor * first}),
    changes_our_mind='A reading in which "an attention score of 0" means none of the same layer.',
    mutation=becomes("holds", "the scores of the layer before", stated=lambda first: first),
)
def rho_one(run: AuditRun, stated: Callable[[Tensor], Tensor] = _zero) -> Evidence:
    """Two layers with scheme (forward, forward) and rho' = 1: the second reads with the stated scores.

    Holds if they agree to 1e-9.
    """
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(run.seed)
        network = AttentionOnly(
            2, 8, 2, alpha=0.5, alpha_hidden=0.0, scheme=("forward", "forward"), init="xavier"
        ).double()
        x = torch.randn(1, 5, 8, dtype=torch.float64)
        first, second = network.layers
        assert isinstance(first, AttentionLayer)
        assert isinstance(second, AttentionLayer)
        one, two = network(x)
        read = second.read(stated(first.scores(x)), one, attn_mask=None, is_causal=False)
        expected = 0.5 * one + 0.5 * read
        error = ((two - expected).abs().max() / two.abs().max()).item()
    return Evidence(
        judge(error < ROUNDING),
        f"The second layer's output differs by {error:.1e} from attention with the stated scores.",
        {"relative difference": error},
    )


@claim(
    "hopfield-abstract-adiabatic",
    "Abstract and Appendix F",
    "In the adiabatic approximation the update of the modern Hopfield network is a self-attention layer.",
    consequence="The starting point of the paper is right: alpha' measures how far one is from that limit.",
    perturbation=Perturbation(lambda factor: {"inverse_temperature": 0.7 * factor}),
    changes_our_mind="A step of the network in this limit that is not softmax(beta x K^T) V.",
    mutation=becomes("fails", "a hidden state as slow as the visible one", tau_hidden=1.0),
)
def attention_is_the_limit(run: AuditRun, tau_hidden: float = 0.0, inverse_temperature: float = 0.7) -> Evidence:
    """One step of length tau_v, beta = 0.7, against softmax(beta x K^T) V.

    Holds if they agree to 1e-9.
    """
    random = np.random.default_rng(run.seed)
    patterns, cue = random.standard_normal((5, 7)), random.standard_normal(7)
    step = HopfieldNetwork(patterns, beta=0.7, tau_hidden=tau_hidden).steps(cue, time=1.0, count=1)[0]
    attention = HopfieldNetwork(patterns, beta=inverse_temperature, tau_hidden=0.0).softmax_update(cue)
    error = float(np.abs(step - attention).max())
    return Evidence(
        judge(error < ROUNDING),
        f"One step differs from softmax(beta x K^T) V by {error:.1e}.",
        {"largest difference": error},
    )


@claim(
    "hopfield-F4-recurrent",
    "Appendix F.4 and Figure 3",
    "It may be possible to interpret the (backward, backward) case as a recurrent network.",
    no_perturbation="It says that something may be possible, and gives no number.",
    changes_our_mind="Weights of every size for which iterating does not converge.",
    consequence="`AttentionOnly(scheme=('backward', 'backward'))` iterates it. It converges for weights that are not "
    "too large; otherwise the recurrent network runs away.",
    mutation=becomes("fails", "large weights only", sizes=(4.0,)),
)
def recurrent(run: AuditRun, sizes: tuple[float, ...] = (0.3, 4.0)) -> Evidence:
    """Iterate Eq. 58 and 59 from the old tokens, rho = rho' = 1, for W_V = 0.3 and 4 times orthogonal.

    Holds if a step changes the tokens by less than 1e-9 after 500 steps at one size or more, which makes it possible.
    """
    random = generator(run.seed)
    x, inherited = (torch.randn(6, n, dtype=torch.float64, generator=random) for n in (4, 6))
    drawn, qk = torch.randn(2, 4, 4, dtype=torch.float64, generator=random) / 2.0
    value, _ = torch.linalg.qr(drawn)  # of spectral radius 1
    changes = {}
    for size in sizes:
        new, change = x, math.inf
        for _ in range(500):
            weights = ((inherited + new @ qk @ new.T) / 2.0).softmax(dim=-1)
            following = (x + size * weights @ new @ value) / 2.0
            new, change = following, (following - new).abs().max().item()
            if not math.isfinite(change) or change > 1e12:
                break
        changes[size] = change
    met = [change < ROUNDING for change in changes.values()]
    return Evidence(
        judge(any(met)),
        "The last step changes the tokens by " + ", ".join(f"{c:.1e} at size {s:g}" for s, c in changes.items()) + ".",
        {f"last change, W_V of size {size:g}": change for size, change in changes.items()},
    )


def _central(sign: float) -> Callable[[float, float, float, float], float]:
    return lambda before, now, drive, rho: before + 2.0 * rho * (drive + sign * now)


_AS_PRINTED, _CORRECTED = _central(1.0), _central(-1.0)


def _leapfrog(steps: int, rule: Callable[[float, float, float, float], float]) -> float:
    """The largest error up to t = 2 for dx/dt = cos t - x, x(0) = 1, by a central rule whose first step is exact."""
    step, worst = 2.0 / steps, 0.0
    before, now = 1.0, _exact(step)
    for n in range(1, steps):
        before, now = now, rule(before, now, math.cos(n * step), step)
        worst = max(worst, abs(now - _exact((n + 1) * step)))
    return worst


def _exact(time: float) -> float:
    return (math.cos(time) + math.sin(time)) / 2.0 + math.exp(-time) / 2.0


@claim(
    "hopfield-eq61-central-hidden",
    "Appendix F.5, Eq. 61",
    "The central difference of the hidden state gives h_new = 2 rho' q K + 2 rho' h + h of two layers before.",
    corrected="h_new = h of two layers before + 2 rho' (q K^T - h): a minus sign, and the transpose of K.",
    consequence="The same slip as in Eq. 60. The corrected rule is in `AttentionOnly(scheme=(..., 'central'))`.",
    root="hopfield-central-sign",
    perturbation=Perturbation(lambda factor: {"rule": _central(-factor)}),
    changes_our_mind="A differential equation with + h in place of - h, which Eq. 46 is not.",
    mutation=becomes("holds", "a minus sign before 2 rho' h", rule=_CORRECTED),
    changes={"state": "h"},
)
@claim(
    "hopfield-eq60-central-visible",
    "Appendix F.5, Eq. 60",
    "The central difference of the visible state gives x_new = 2 rho softmax(h) V + 2 rho x + x of two layers before.",
    corrected="x_new = x of two layers before + 2 rho (softmax(h) V - x): as printed the rule follows dx/dt = drive "
    "+ x, which grows.",
    consequence="Right sign or not, the rule is for study: the corrected one has a parasitic solution that grows by "
    "rho + sqrt(1 + rho^2) a layer, 1.618 at rho = 0.5.",
    root="hopfield-central-sign",
    perturbation=Perturbation(lambda factor: {"rule": _central(-factor)}),
    changes_our_mind="A differential equation with + x in place of - x, which Eq. 45 is not.",
    mutation=becomes("holds", "a minus sign before 2 rho x", rule=_CORRECTED),
    changes={"state": "x"},
)
def central(run: AuditRun, state: str, rule: Callable[[float, float, float, float], float] = _AS_PRINTED) -> Evidence:
    """Halve the step on dx/dt = cos t - x: a right central rule has an error that falls four times each time.

    Holds if the order is within 0.3 of 2 and the error with the most steps below 0.01.
    """
    counts = (40, 80, 160, 320)
    errors = [_leapfrog(steps, rule) for steps in counts]
    order = float(np.polyfit(np.log(counts), -np.log(errors), 1)[0])
    growth = 0.5 + math.sqrt(1.25)
    return Evidence(
        judge(abs(order - 2.0) < 0.3 and errors[-1] < 0.01),
        f"Largest error with {counts[-1]} steps: {errors[-1]:.2g}; order of convergence {order:.2f} where 2 is right. "
        f"The corrected rule's parasitic solution grows by {growth:.3f} a layer at rho = 0.5, {growth**12:.0f} times "
        f"over 12 layers, for {state} as for any decaying state.",
        {**{f"error, {n} steps": e for n, e in zip(counts, errors, strict=True)}, "order": order},
        Plot(
            "steps",
            "error",
            [(n, e, "stated rule") for n, e in zip(counts, errors, strict=True)]
            + [(n, _leapfrog(n, _CORRECTED), "corrected rule") for n in counts],
            log_x=True,
            log_y=True,
        ),
    )
