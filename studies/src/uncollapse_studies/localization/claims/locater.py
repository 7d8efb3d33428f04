"""Section 6: the regulariser LocAteR, its gradients and its minimum."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from uncollapse.metrics import qk_traces
from uncollapse.theory import generator, qk_statistics

from ...audit.cells import finished, read
from ...audit.claim import ROUNDING, AuditRun, Evidence, Perturbation, Plot, becomes, judge, times
from .sources import claim

Weights = tuple[Tensor, Tensor]
KAPPA_SCALE = 100.0
KAPPA_MEANS = (1e-3, 1e-2, 1e-1, 1.0)


def _weights(run: AuditRun) -> Weights:
    random = generator(run.seed)
    query, key = torch.randn(2, 4, 6, dtype=torch.float64, generator=random)
    return query.requires_grad_(), key.requires_grad_()


def _scale(query: Tensor, key: Tensor) -> Tensor:
    return qk_traces(query, key)[2]


def _mean(query: Tensor, key: Tensor) -> Tensor:
    return (qk_traces(query, key)[0] - 1.0) ** 2


def _printed_mean(own: Tensor, other: Tensor) -> Tensor:
    trace = (own * other).sum()
    return (trace - 1.0) * trace * other


def _right_mean(own: Tensor, other: Tensor) -> Tensor:
    return 2.0 * ((own * other).sum() - 1.0) * other


def _right_scale(own: Tensor, other: Tensor) -> Tensor:
    return 2.0 * other @ other.T @ own


_PENALTIES = {"scale": _scale, "mean": _mean}
_SLIP = (
    "The print equals the truth times tr(W_QK)/2: right at tr = 2, zero at tr = 0, of the wrong sign for tr < 0, where "
    "descent runs away."
)
Formula = Callable[[Tensor, Tensor], Tensor]


def _gradients(run: AuditRun, penalty: str, of: str, formula: Formula) -> Evidence:
    """Against autograd; and descent by the stated gradient from twenty random starts.

    Holds if they agree to 1e-9 of the gradient's size.
    """
    query, key = _weights(run)
    exact = dict(zip(("query", "key"), torch.autograd.grad(_PENALTIES[penalty](query, key), (query, key)), strict=True))
    own, other = (query, key) if of == "query" else (key, query)
    stated = formula(own.detach(), other.detach())
    error = ((stated - exact[of]).norm() / exact[of].norm()).item()
    lost = _runaways(run, formula) if penalty == "mean" else 0
    away = f" Descent by it runs away from {lost} of 20 random starts." if penalty == "mean" else ""
    return Evidence(
        judge(error < ROUNDING),
        f"It differs from autograd by {error:.2g} of the gradient's size.{away}",
        {"relative difference": error, "runaway descents of 20": lost},
    )


def _runaways(run: AuditRun, formula: Formula) -> int:
    random, lost = generator(run.seed), 0
    for _ in range(20):
        query, key = torch.randn(2, 4, 6, dtype=torch.float64, generator=random) / 2
        for _ in range(300):
            query, key = query - 0.02 * formula(query, key), key - 0.02 * formula(key, query)
            if not torch.isfinite(query).all() or query.abs().max() > 1e6:
                break
        trace = (query * key).sum().item()
        lost += not abs(trace - 1.0) < 0.5
    return lost


def _rescaled(formula: Formula) -> Callable[[float], dict[str, Formula]]:
    return lambda factor: {"formula": times(factor, formula)}


_FORMULAE = [("scale", "query"), ("scale", "key"), ("mean", "query"), ("mean", "key")]
for _n, (_penalty, _of) in enumerate(_FORMULAE, start=1):
    _is_mean = _penalty == "mean"
    _name = "(tr(W_QK) - 1)^2" if _is_mean else "tr(W_QK' W_QK)"
    _letter, _partner = ("Q", "K") if _of == "query" else ("K", "Q")
    _printed_form = f"[tr(W_QK) - 1] tr(W_QK) W_{_partner}" if _is_mean else f"2 W_{_partner} W_{_partner}' W_{_letter}"
    claim(
        f"localization-gradient{_n}",
        f"Section 6, derivative formula {_n}",
        f"The gradient of {_name} with respect to W_{_letter} is {_printed_form}.",
        corrected=f"2 [tr(W_QK) - 1] W_{_partner}. {_SLIP}" if _is_mean else "",
        consequence="Let autograd do it: users of autograd are not affected."
        if _is_mean
        else "Right; no d by d matrix is needed.",
        root="localization-trace-gradient" if _is_mean else "",
        changes_our_mind="Weights for which autograd gives the printed form."
        if _is_mean
        else "Weights for which autograd gives another form.",
        perturbation=Perturbation(_rescaled(_right_mean if _is_mean else _right_scale)),
        mutation=becomes("holds", "the corrected gradient", formula=_right_mean)
        if _is_mean
        else becomes("fails", "without the factor 2", formula=lambda own, other: _right_scale(own, other) / 2.0),
        changes={"penalty": _penalty, "of": _of, "formula": _printed_mean if _is_mean else _right_scale},
    )(_gradients)


def penalty_minimum(width: int, kappa_scale: float, kappa_mean: float, target: float = 1.0) -> float:
    """The trace at which kappa_1 tr(W'W) + kappa_2 (tr W - target)^2 is least: W = (t/d) I."""
    return target * kappa_mean / (kappa_mean + kappa_scale / width)


def _descended(width: int, kappa_scale: float, kappa_mean: float) -> float:
    """The same by solving the gradient's equation 2 kappa_1 W + 2 kappa_2 (tr W - 1) I = 0 for a full matrix."""
    eye = np.eye(width)
    outer = np.outer(eye.ravel(), eye.ravel())
    system = kappa_scale * np.eye(width * width) + kappa_mean * outer
    return float(np.linalg.solve(system, kappa_mean * eye.ravel()) @ eye.ravel())


def _in_trained_networks(run: AuditRun) -> str:
    """Where the trace ended in the cells of Figure 6, with the loss; empty without these cells."""
    found, told = finished(["localization-fig6"], run.cells), []
    for kappa in (KAPPA_MEANS[-1], KAPPA_MEANS[0]):
        own = [read(cell, "qk_trace") for cell in found if cell.get("settings", {}).get("kappa_mean") == kappa]
        traces = [trace for trace in own if trace is not None]
        if traces:
            told.append(f"{np.mean(traces):.2g} with kappa_2 = {kappa:g} (mean of {len(traces)} seeds)")
    return f" In trained networks it ended at {' and '.join(told)}." if told else ""


@claim(
    "localization-locater-mean",
    "Section 6, purpose of LocAteR",
    "The regulariser minimises the scale while it keeps the mean, tr(W_QK), at a fixed level.",
    corrected="The two penalties trade off: at their minimum tr(W_QK) = kappa_2/(kappa_2 + kappa_1/d), which is "
    "0.0013 to 0.56 for the paper's kappa_1 = 100, d = 128 and kappa_2 = 1e-3 to 1, whatever the loss is divided by.",
    survives=False,
    consequence="To hold the trace at 1, kappa_2 has to be large against kappa_1/d.",
    root="localization-locater-mean",
    changes_our_mind="A loss J that holds tr(W_QK) near 1 against the penalty in trained networks.",
    no_perturbation="It states that a level is kept; the number for kept, nine tenths of it, is ours.",
    mutation=becomes("holds", "kappa_1 = 0.001", kappa_scale=1e-3),
)
def keeps_mean(run: AuditRun, kappa_scale: float = KAPPA_SCALE) -> Evidence:
    """The penalty's own minimum; the task's loss is left aside, and what it does in trained networks stands beside it.

    Holds if tr(W_QK) is above 0.9, of the target 1, for the strongest kappa_2 of the paper.
    """
    agree = abs(_descended(8, kappa_scale, 0.5) - penalty_minimum(8, kappa_scale, 0.5))
    if agree > 1e-9:
        raise ArithmeticError(f"closed form and linear solve of the penalty's minimum differ by {agree:.1e}.")
    traces = {kappa: penalty_minimum(128, kappa_scale, kappa) for kappa in KAPPA_MEANS}
    return Evidence(
        judge(traces[KAPPA_MEANS[-1]] > 0.9),
        "At the penalty's minimum (d = 128) tr(W_QK) is "
        + ", ".join(f"{t:.2g} for kappa_2 = {k:g}" for k, t in traces.items()) + "." + _in_trained_networks(run),
        {f"kappa_2 = {kappa:g}": trace for kappa, trace in traces.items()},
        Plot("kappa_2", "tr(W_QK) at the minimum", [(k, t, "trace") for k, t in traces.items()], log_x=True, rule=1.0,
             rule_says="target"),
    )  # fmt: skip


@claim(
    "localization-locater-localises",
    "Section 6, name and purpose of LocAteR (implied, not printed)",
    "The regularised spectrum is in the localised regime of Lemma 2, tr(W)/lambda above 2.",
    corrected="With a target of 1 even a perfect fit gives tr(W)/lambda = 1/sqrt(128) = 0.088 (Sigma = I). At the "
    "penalty's minimum all or all late tokens propagate.",
    survives=False,
    consequence="By the paper's own theory the regulariser makes attention uniform, not localised. What helps in "
    "training, if it does, is the smaller scale.",
    root="localization-locater-regime",
    changes_our_mind="A target or temperature in the experiments with which tr(W)/lambda exceeds 2.",
    no_perturbation="It compares a number with the threshold 2 of Lemma 2 from far below.",
    mutation=becomes("holds", "a target of 100", target=100.0),
)
def reaches_localised(run: AuditRun, target: float = 1.0) -> Evidence:
    """tr(W)/lambda at the minimum for the strongest kappa_2 of the paper, and rho there.

    Holds if tr(W)/lambda exceeds 2.
    """
    trace = penalty_minimum(128, KAPPA_SCALE, 1.0, target)
    ratio = trace / math.sqrt(128)
    rho = qk_statistics(np.eye(128) * trace / 128).propagation(64)
    rows = [(n / 64, float(v), "rho") for n, v in enumerate(rho, start=1)]
    return Evidence(
        judge(ratio > 2.0),
        f"kappa_2 = 1: tr(W)/lambda = {ratio:.3f}, where localisation needs more than 2; {int((rho > 0.5).sum())} of "
        "64 tokens propagate.",
        {"tr(W)/lambda": ratio, "tokens with rho above 1/2": int((rho > 0.5).sum())},
        Plot("position", "rho at the minimum", rows),
    )


@claim(
    "localization-locater-signal",
    "Section 6, after the derivative formulae",
    "Since the objective drives the scale to a small value, the vanishing of signals is avoided automatically.",
    consequence="Right: at the penalty's minimum signals propagate.",
    changes_our_mind="A kappa_2 at whose minimum no token propagates.",
    no_perturbation="It states that signals do not vanish; the number one half is ours.",
    mutation=becomes("fails", "weights a thousand thousand times as large", factor=1e6),
)
def signal(run: AuditRun, factor: float = 1.0) -> Evidence:
    """The largest rho at the penalty's minimum, T = 64.

    Holds if it exceeds 1/2 for every kappa_2.
    """
    largest = {
        kappa: float(
            qk_statistics(np.eye(128) * factor * penalty_minimum(128, KAPPA_SCALE, kappa) / 128).propagation(64).max()
        )
        for kappa in KAPPA_MEANS
    }
    return Evidence(
        judge(all(value > 0.5 for value in largest.values())),
        f"The largest rho is {min(largest.values()):.2g} or more for every kappa_2.",
        {f"largest rho, kappa_2 = {kappa:g}": value for kappa, value in largest.items()},
    )


@claim(
    "localization-locater-scale",
    "Section 6, asymmetric W_QK",
    "For an asymmetric W_QK the scale of the spectrum, tr(W_QK^2), is represented by tr(W_QK' W_QK).",
    corrected="For an asymmetric matrix the two differ: tr(W'W) bounds |tr(W^2)| from above. The symmetric part has "
    "(tr(W^2) + tr(W'W))/2.",
    consequence="Shrinking tr(W'W) shrinks the scale, but is no measure of it; `diagnose` reports both.",
    changes_our_mind="Trained W_QK that are nearly symmetric.",
    no_perturbation="It names one number as standing for another; they differ by far more than 20 %.",
    mutation=becomes("holds", "a symmetric W_QK", symmetric=True),
)
def represents(run: AuditRun, symmetric: bool = False) -> Evidence:
    """A Gaussian matrix of width 128.

    Holds if the two agree to 1 %; under a condition if they do for its symmetric part.
    """
    m = torch.randn(128, 128, dtype=torch.float64, generator=generator(run.seed)) / math.sqrt(128)
    half = (m + m.T) / 2
    square, frobenius = _squares(half if symmetric else m)
    even, even_frobenius = _squares(half)
    return Evidence(
        judge(abs(square / frobenius - 1.0) < 0.01, abs(even / even_frobenius - 1.0) < 0.01),
        f"tr(W^2) = {square:.1f}, tr(W'W) = {frobenius:.1f}; of the symmetric part {even:.1f} and "
        f"{even_frobenius:.1f}.",
        {"tr(W^2)": square, "tr(W'W)": frobenius},
    )


def _squares(m: Tensor) -> tuple[float, float]:
    """tr(W^2) and tr(W'W)."""
    _, square, frobenius = qk_traces(torch.eye(len(m), dtype=torch.float64), m)
    return square.item(), frobenius.item()


@claim(
    "localization-kappa",
    "Section 7, setup (implied, not printed)",
    "kappa_1 = 100 and kappa_2 fix the strength of the regulariser.",
    corrected="They do with the normalisation of the loss, which the text does not give. Summed over the 64 x 64 "
    "tokens of a batch the same kappa is 4,096 times weaker against the loss than with the mean.",
    survives=False,
    consequence="State how the loss is averaged beside every kappa; here it is the mean over tokens, once an update.",
    root="localization-kappa-normalisation",
    changes_our_mind="A sentence on how the loss is averaged, or code of the experiments.",
    no_perturbation="The factor of 4,096 is the 64 x 64 tokens of a batch, typed in from Section 7.",
    mutation=becomes("holds", "the mean over tokens alone", normalisers=(64.0 * 64.0,)),
)
def kappa_is_enough(run: AuditRun, normalisers: tuple[float, ...] = (1.0, 64.0 * 64.0)) -> Evidence:
    """The gradient of the penalty against that of the loss, for each reading of the loss that the text allows.

    The 64 x 64 tokens of a batch are typed in from Section 7.

    Holds if they differ by less than 1 %.
    """
    query, key = _weights(run)
    [pull] = torch.autograd.grad(KAPPA_SCALE * _scale(query, key), query)
    shares = [float(pull.norm()) * normaliser / 4096.0 for normaliser in normalisers]  # per unit of summed gradient
    return Evidence(
        judge(max(shares) / min(shares) < 1.01),
        f"The readings of the loss that the text allows differ by a factor of {max(shares) / min(shares):,.0f} in the "
        "strength of the penalty.",
        {"readings": len(normalisers), "factor between them": max(shares) / min(shares)},
    )
