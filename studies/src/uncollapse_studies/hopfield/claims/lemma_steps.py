"""The steps of the proof of Lemma D.1, Eq. 24 to 35, put to random layers that meet its assumption."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from uncollapse.metrics import norm_1, norm_1_inf, norm_inf
from uncollapse.theory import SPAN, column_factor

from ...audit.claim import ROUNDING, AuditRun, Evidence, Perturbation, Plot, becomes, judge, times
from .layers import ALPHA_HIDDEN, ExampleLayer, alternating, one_raised, random_layers, two_tokens
from .sources import claim

Sides = Callable[[ExampleLayer], tuple[Tensor, Tensor]]
FULL, SMALLEST = 4000, 150


def _counted(run: AuditRun, sides: Sides, first: Iterable[ExampleLayer] = ()) -> tuple[int, int, float]:
    """How many layers break left <= right (entry by entry), of how many, and the largest ratio."""
    broken, worst, cases = 0, 0.0, 0
    sharp = [two_tokens(0.0, 0.2), two_tokens(1.0, 0.0)]  # right forms come near equality there
    for layer in [*first, *sharp, *random_layers(run, run.pick(FULL, SMALLEST))]:
        left, right = sides(layer)
        slack = ROUNDING * norm_inf(layer.rest) * norm_inf(layer.value)  # of the size of what is subtracted
        over = left > right * (1 + ROUNDING) + slack
        broken += int(over.any())
        worst = max(worst, (left / right.clamp(min=1e-300)).max().item())
        cases += 1
    return broken, cases, worst


def _right_side(sides: Sides) -> Perturbation:
    """20 % off the right side of an inequality in its right form."""

    def changed(factor: float) -> dict[str, Sides]:
        def tightened(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
            left, right = sides(layer)
            return left, factor * right

        return {"sides": tightened}

    return Perturbation(changed, (0.8,))


def _found(run: AuditRun, sides: Sides, first: Iterable[ExampleLayer] = (), extra: str = "") -> Evidence:
    broken, cases, worst = _counted(run, sides, first)
    return Evidence(
        judge(broken == 0),
        f"{broken} of {cases} layers that meet the assumption (span at most {SPAN}) break it.{extra}",
        {"layers": cases, "broken": broken, "largest ratio of the sides": min(worst, 1e12)},
    )


@claim(
    "hopfield-eq24-stochastic",
    "Appendix D.1, Eq. 24",
    "Since the rows of P sum to one, P R = P X - 1 x^T.",
    consequence="Only the residual of the tokens matters for the residual of the output.",
    perturbation=Perturbation(lambda factor: {"weights": times(factor, lambda layer: layer.attention)}),
    changes_our_mind="Attention whose rows do not sum to one, such as after dropout.",
    mutation=becomes("fails", "a P whose columns sum to one", weights=lambda layer: layer.attention.T),
)
def stochastic(run: AuditRun, weights: Callable[[ExampleLayer], Tensor] = lambda layer: layer.attention) -> Evidence:
    """Both sides on random layers.

    Holds if they agree to 1e-9 of the tokens' size.
    """
    errors = []
    for layer in random_layers(run, run.pick(500, 50)):
        p, mean = weights(layer), layer.tokens.mean(dim=0)
        size = layer.tokens.abs().max()
        errors.append(((p @ layer.rest - (p @ layer.tokens - mean)).abs().max() / size).item())
    return Evidence(
        judge(max(errors) < ROUNDING),
        f"The two sides differ by at most {max(errors):.1e} of the tokens' size over {len(errors)} layers.",
        {"layers": len(errors), "largest difference": max(errors)},
    )


def _eq_25(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
    centre = layer.shared @ layer.rest  # softmax(r) R: (1, d)
    middle = layer.attention @ layer.rest
    spread = 2.0 * layer.spans * centre  # signed, as printed
    return torch.cat([centre - spread, middle]), torch.cat([middle, centre + spread])


def _eq_25_right(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
    return (
        (layer.attention @ layer.rest - layer.shared @ layer.rest).abs(),
        2.0 * layer.spans * (layer.shared @ layer.rest.abs()),
    )


@claim(
    "hopfield-eq25-elementwise",
    "Appendix D.1, Eq. 25 and 26",
    "Entry by entry, P R lies between (I - 2D) 1 softmax(r) R and (I + 2D) 1 softmax(r) R.",
    corrected="|P R - 1 softmax(r) R| <= 2 D 1 softmax(r) |R|: the inequality for P may be multiplied by |R|, not "
    "by R, whose entries have both signs.",
    consequence="The element-wise step is not usable in code as printed; the lemma has a proof without it.",
    root="hopfield-sign-of-r",
    perturbation=_right_side(_eq_25_right),
    changes_our_mind="A reading of Eq. 25 in which R stands for |R| on both outer sides.",
    mutation=becomes("holds", "with |R| on the right", sides=_eq_25_right),
)
def elementwise(run: AuditRun, sides: Sides = _eq_25) -> Evidence:
    """On layers that meet the assumption of the proof.

    Holds if no layer breaks it by more than 1e-9.
    """
    return _found(run, sides, [one_raised()], " With r = 0 the right side is 0, so Eq. 25 would say P R = 0.")


def _eq_28(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
    centre = layer.shared @ layer.rest
    return (
        (layer.attention @ layer.rest - (layer.tokens.mean(dim=0) + centre)).abs(),
        2.0 * (layer.spans * centre).abs(),
    )


@claim(
    "hopfield-eq27-28-absolute",
    "Appendix D.1, Eq. 27 and 28",
    "|P R - 1 (x^T + softmax(r) R)| is at most 2 |D 1 softmax(r) R|, entry by entry.",
    corrected="|P X - 1 (x^T + softmax(r) R)| <= 2 D 1 softmax(r) |R|: P X on the left, |R| on the right.",
    consequence="Two slips in one line: R for X, and the sign of R.",
    root="hopfield-sign-of-r",
    perturbation=_right_side(_eq_25_right),
    changes_our_mind="A reading of Eq. 28 with P X on the left and |R| on the right.",
    mutation=becomes("holds", "with P X and |R|", sides=_eq_25_right),
)
def absolute(run: AuditRun, sides: Sides = _eq_28) -> Evidence:
    """As printed, P R stands where P X is meant.

    Holds if no layer breaks it by more than 1e-9.
    """
    return _found(run, sides, [one_raised()])


def _norms_29(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
    """Eq. 29 and 30, read with P X and with 1 (x + softmax(r) R) W_V for res."""
    moved = (layer.attention - layer.shared) @ layer.rest @ layer.value
    allowed = 2.0 * layer.spans * (layer.shared @ layer.rest @ layer.value)
    return torch.stack([norm_1(moved), norm_inf(moved)]), torch.stack([norm_1(allowed), norm_inf(allowed)])


def _norms_29_right(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
    moved = (layer.attention - layer.shared) @ layer.rest @ layer.value
    size = norm_1(layer.scores)
    columns = column_factor(layer.spans.max().item()) * size * norm_1(layer.rest) * norm_1(layer.value)
    rows = size * norm_inf(layer.rest) * norm_inf(layer.value)
    return torch.stack([norm_1(moved), norm_inf(moved)]), torch.stack([columns, rows])


@claim(
    "hopfield-eq29-30-norms",
    "Appendix D.1, Eq. 29 and 30",
    "The 1- and infinity-norms of MHA(X) - res are at most those of 2 D 1 softmax(r) R W_V.",
    corrected="||MHA(X) - res||_1 <= kappa(s) ||E~||_1 ||R||_1 ||W_V||_1 and ||MHA(X) - res||_inf <= ||E~||_1 "
    "||R||_inf ||W_V||_inf, with kappa(1.256) = 1.378.",
    consequence="The lemma needs the other proof; `column_factor` is its kappa.",
    root="hopfield-sign-of-r",
    perturbation=_right_side(_norms_29_right),
    changes_our_mind="A proof of the two norms' bounds that does not pass through Eq. 28.",
    mutation=becomes("holds", "the two norms bounded by E~", sides=_norms_29_right),
)
def norms_of_the_layer(run: AuditRun, sides: Sides = _norms_29) -> Evidence:
    """Read with the evident repairs: P X for P R, and res = 1 (x + softmax(r) R) W_V.

    Holds if no layer breaks it by more than 1e-9.
    """
    return _found(run, sides)


def _eq_31(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
    moved = (layer.attention - layer.shared) @ layer.rest @ layer.value
    return norm_1(moved), 2.0 * layer.spans.max() * norm_1(layer.rest) * norm_1(layer.value)


def _eq_31_right(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
    left, right = _norms_29_right(layer)
    return left[0], right[0]


@claim(
    "hopfield-eq31-columns",
    "Appendix D.1, Eq. 31",
    "||MHA(X) - res||_1 is at most 2 max_i D_i ||R||_1 ||W_V||_1.",
    corrected="||MHA(X) - res||_1 <= 1.378 ||E~||_1 ||R||_1 ||W_V||_1 while no row spans more than 1.256: the "
    "column sum of E~, not its largest span, is what bounds a column sum.",
    consequence="The bound must grow with the number of tokens that shift together.",
    root="hopfield-hoelder",
    perturbation=_right_side(_eq_31_right),
    changes_our_mind="An error in the example: tokens that prefer one of two in turn.",
    mutation=becomes("holds", "with the column sum of E~", sides=_eq_31_right),
)
def columns_of_the_layer(run: AuditRun, sides: Sides = _eq_31) -> Evidence:
    """N tokens that prefer one of two in turn make the left side grow with N and leave the right side as it is.

    Holds if no layer breaks it by more than 1e-9.
    """
    sizes = (4, 8, 16, 32, 64)
    pairs = [tuple(side.item() for side in sides(alternating(n))) for n in sizes]
    plot = Plot(
        "tokens N",
        "1-norm",
        [(n, pair[k], name) for n, pair in zip(sizes, pairs, strict=True) for k, name in enumerate(("left", "right"))],
        log_x=True,
        log_y=True,
    )
    broken, cases, _ = _counted(run, sides)
    over = sum(low > high * (1 + ROUNDING) for low, high in pairs)
    left, right = pairs[2]
    return Evidence(
        judge(over + broken == 0),
        f"Two tokens attended, preferred in turn by N = 16 others with span 0.6: left {left:.2f}, right {right:.2f}; "
        f"{over} of {len(sizes)} such layers and {broken} of {cases} others break it.",
        {"left, N = 16": left, "right, N = 16": right, "other layers": cases, "other layers broken": broken},
        plot,
    )


@claim(
    "hopfield-eq32-rows",
    "Appendix D.1, Eq. 32",
    "||MHA(X) - res||_inf is at most 2 max_i D_i ||R||_inf ||W_V||_inf.",
    consequence="Right with room to spare: half the largest span would do in place of twice it.",
    perturbation=Perturbation(lambda factor: {"constant": 0.5 * factor}, (0.8,)),
    changes_our_mind="A layer that breaks it with 0.5 in place of 2, which is sharp.",
    mutation=becomes("fails", "a constant of 0.02 in place of 2", constant=0.02),
)
def rows_of_the_layer(run: AuditRun, constant: float = 2.0) -> Evidence:
    """The row norm of a difference of two softmax rows is at most half their span.

    Holds if no layer breaks it by more than 1e-9.
    """

    def sides(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
        moved = (layer.attention - layer.shared) @ layer.rest @ layer.value
        return norm_inf(moved), constant * layer.spans.max() * norm_inf(layer.rest) * norm_inf(layer.value)

    return _found(run, sides, [alternating(16)])


def _eq_33(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
    moved = (layer.attention - layer.shared) @ layer.rest @ layer.value
    return norm_1_inf(moved), 2.0 * layer.spans.max() * norm_1_inf(layer.value) * norm_1_inf(layer.rest)


def _eq_33_right(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
    left, right = _norms_29_right(layer)
    return left.prod().sqrt(), right.prod().sqrt()


@claim(
    "hopfield-eq33-composite",
    "Appendix D.1, Eq. 33",
    "||MHA(X) - res|| in the (1, inf) sense is at most 2 max_i D_i ||W_V|| ||R||.",
    corrected="||MHA(X) - res|| <= 1.174 ||E~||_1 ||R|| ||W_V||; as printed a factor sqrt(N max softmax(r)) is "
    "missing.",
    consequence="Do not bound a layer by the span of its scores alone when it has many tokens.",
    root="hopfield-hoelder",
    perturbation=_right_side(_eq_33_right),
    changes_our_mind="An error in the example: tokens that prefer one of two in turn.",
    mutation=becomes("holds", "with the column sum of E~", sides=_eq_33_right),
)
def composite_of_the_layer(run: AuditRun, sides: Sides = _eq_33) -> Evidence:
    """The same layers as for Eq. 31, with more tokens.

    Holds if no layer breaks it by more than 1e-9.
    """
    many = (16, 64, 256, 1024) if run.size == "full" else (16, 64, 256)
    pairs = {n: tuple(side.item() for side in sides(alternating(n))) for n in many}
    broken, cases, _ = _counted(run, sides)
    over = [n for n, (low, high) in pairs.items() if low > high * (1 + ROUNDING)]
    largest = many[-1]
    return Evidence(
        judge(not over and broken == 0),
        f"With {largest} tokens that prefer one of two in turn the left side is {pairs[largest][0]:.2f}, the right "
        f"side {pairs[largest][1]:.2f}; {broken} of {cases} other layers break it.",
        {f"left, N = {largest}": pairs[largest][0], f"right, N = {largest}": pairs[largest][1], "broken": broken},
    )


@claim(
    "hopfield-eq34-span",
    "Appendix D.1, Eq. 34",
    "The largest span of a row of E~ = E + (alpha'/sqrt(d_k)) A is at most 2 ||E||_1 + 2 (alpha'/sqrt(d_k)) ||A||_1.",
    consequence="Right with the E~ of Eq. 23. The first two lines of Eq. 34 carry alpha' A without 1/sqrt(d_k): the "
    "slip of hopfield-eq15-recursion.",
    perturbation=Perturbation(lambda factor: {"allowed": factor}, (0.8,)),
    changes_our_mind="A layer whose row spans more than that, with the E~ of Eq. 23.",
    mutation=becomes("fails", "E~ = E + alpha' A, as in the first line of Eq. 34", carried=lambda head_size: 1.0),
)
def span_of_scores(
    run: AuditRun, carried: Callable[[int], float] = lambda head_size: head_size**-0.5, allowed: float = 1.0
) -> Evidence:
    """E~ as Eq. 23 prints it: whatever A is, alpha' A is divided by sqrt(d_k).

    Holds if no layer breaks it by more than 1e-9.
    """

    def sides(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
        scores = layer.own + ALPHA_HIDDEN * carried(layer.head_size) * layer.inherited
        most = 2.0 * norm_1(layer.own) + 2.0 * ALPHA_HIDDEN * norm_1(layer.inherited) / math.sqrt(layer.head_size)
        return (scores.amax(dim=-1) - scores.amin(dim=-1)).max(), allowed * most

    return _found(run, sides)


@claim(
    "hopfield-eq35-interaction",
    "Appendix D.1, Eq. 35",
    "||E||_1 is at most (beta / sqrt(d_k)) ||W_QK||_1 ||R||^2 in the (1, inf) sense.",
    consequence="Scores of tokens that are nearly alike are of second order in what sets them apart: the source of the "
    "cubic decay.",
    perturbation=Perturbation(lambda factor: {"allowed": factor}, (0.8,)),
    changes_our_mind="A layer whose E is larger; two tokens attain equality.",
    mutation=becomes("fails", "the third power of ||R||", power=3),
)
def interaction(run: AuditRun, power: int = 2, allowed: float = 1.0) -> Evidence:
    """||R^T||_1 = ||R||_inf turns the product into a square.

    Holds if no layer breaks it by more than 1e-9.
    """

    def sides(layer: ExampleLayer) -> tuple[Tensor, Tensor]:
        gain = allowed * (1.0 - ALPHA_HIDDEN) / math.sqrt(layer.head_size)
        return norm_1(layer.own), gain * norm_1(layer.qk) * norm_1_inf(layer.rest) ** power

    return _found(run, sides)
