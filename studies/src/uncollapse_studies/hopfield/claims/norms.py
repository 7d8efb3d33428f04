"""Appendix C and the start of D: operator norms, their products, the residual."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from uncollapse.metrics import norm_1, norm_1_inf, norm_inf, residual
from uncollapse.theory import generator

from ...audit.claim import ROUNDING, AuditRun, Evidence, Perturbation, becomes, judge, times
from .sources import claim

Norm = Callable[[Tensor], Tensor]


def draws(run: AuditRun, count: int, *shape: int) -> Tensor:
    """Matrices with heavy tails, so that few entries may decide: (count, *shape)."""
    return torch.randn(count, *shape, dtype=torch.float64, generator=generator(run.seed)) ** 3


@claim(
    "hopfield-eq2-3-norms",
    "Appendix C, Eq. 2 and 3",
    "The operator 1-norm is the largest column sum, the operator infinity-norm the largest row sum.",
    consequence="The two norms of every bound are cheap to compute.",
    perturbation=Perturbation(lambda factor: {"columns": times(factor, norm_1)}),
    changes_our_mind="A matrix whose operator norm, from the definition (1), is another.",
    mutation=becomes("fails", "rows and columns exchanged", columns=norm_inf, rows=norm_1),
)
def operator_norms(run: AuditRun, columns: Norm = norm_1, rows: Norm = norm_inf) -> Evidence:
    """Against the definition (1): the unit balls' corners are unit vectors for p = 1 and signs for p = infinity.

    Holds if they agree to 1e-9.
    """
    a = draws(run, run.pick(500, 50), 5, 4)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 4)
    first = a.abs().sum(dim=1).amax(dim=1)  # max over unit vectors of ||A e||_1
    second = (a @ signs.T).abs().amax(dim=1).amax(dim=1)
    error = max(((columns(a) - first).abs() / first).max().item(), ((rows(a) - second).abs() / second).max().item())
    return Evidence(
        judge(error < ROUNDING),
        f"Over {len(a)} random matrices the two sums differ from the definition by at most {error:.1e}.",
        {"matrices": len(a), "largest relative difference": error},
    )


@claim(
    "hopfield-eq4-5-products",
    "Appendix C, Eq. 4 and 5",
    "Both norms are submultiplicative: the norm of AB is at most the norm of A times the norm of B.",
    consequence="Bounds of a layer can be multiplied up from bounds of its factors.",
    perturbation=Perturbation(lambda factor: {"norms": (times(factor, norm_1), times(factor, norm_inf))}, (0.8,)),
    changes_our_mind="Two matrices whose product has a larger norm.",
    mutation=becomes("fails", "the largest entry in place of the norms", norms=(lambda a: a.abs().amax(dim=(-1, -2)),)),
)
def submultiplicative(run: AuditRun, norms: tuple[Norm, ...] = (norm_1, norm_inf)) -> Evidence:
    """Random products, and products of ones, which attain equality.

    Holds if no ratio exceeds 1 by more than 1e-9.
    """
    count = run.pick(2000, 200)
    pair = draws(run, 2 * count, 5, 5)
    a = torch.cat([pair[:count], torch.ones(1, 5, 5, dtype=torch.float64)])
    b = torch.cat([pair[count:], torch.ones(1, 5, 5, dtype=torch.float64)])
    worst = max((norm(a @ b) / (norm(a) * norm(b))).max().item() for norm in norms)
    return Evidence(
        judge(worst <= 1.0 + ROUNDING),
        f"The ratio of the two sides is at most {worst:.4g} over {len(a)} products.",
        {"products": len(a), "largest ratio": worst},
    )


def _holder(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return norm_1(a @ b), norm_inf(a) * norm_1(b)


def _holder_rows(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return norm_inf(a @ b), norm_inf(a) * norm_inf(b)


def _right_side(
    factor: float, sides: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """An inequality with its right side times a factor."""

    def changed(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        left, right = sides(a, b)
        return left, factor * right

    return changed


@claim(
    "hopfield-eq6-hoelder",
    "Appendix C, Eq. 6",
    "||AB||_1 is at most ||A||_inf ||B||_1.",
    corrected="||AB||_inf <= ||A||_inf ||B||_inf, which is what the proof shows: it sums over rows, while Eq. 2 "
    "defines the 1-norm by columns.",
    consequence="Eq. 31 uses it and falls with it; Lemma D.1 survives by another proof.",
    root="hopfield-hoelder",
    perturbation=Perturbation(lambda factor: {"sides": _right_side(factor, _holder_rows)}, (0.8,)),
    changes_our_mind="An error in the example: a column of five ones times the number 1.",
    mutation=becomes("holds", "the row norm on both sides", sides=_holder_rows),
)
def hoelder(run: AuditRun, sides: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = _holder) -> Evidence:
    """A column of ones times a number, and random matrices.

    Holds if no case breaks it by more than 1e-9.
    """
    count = run.pick(2000, 200)
    column, one = torch.ones(1, 5, 1, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    left, right = sides(column, one)
    a, b = draws(run, count, 5, 3), draws(run, count, 3, 4)
    low, high = sides(a, b)
    broken = int((low > high * (1 + ROUNDING)).sum())
    return Evidence(
        judge(broken == 0 and bool(left <= right)),
        f"A column of five ones times 1 has {left.item():g} on the left and {right.item():g} on the right; "
        f"{broken} of {count} random products break the inequality.",
        {"left, column of ones": left.item(), "right, column of ones": right.item(), "broken": broken, "cases": count},
    )


@claim(
    "hopfield-eq7-triangle",
    "Appendix C, Eq. 7, as used in D.2",
    "The composite norm sqrt(||A||_1 ||A||_inf) of a sum of heads is at most the sum of those of the heads.",
    corrected="Add heads up in the 1-norm and in the infinity-norm separately, then take the root of the product: "
    "sqrt(sum_h ||A_h||_1 sum_h ||A_h||_inf).",
    consequence="It is not a norm. `residual_bounds` adds heads and the skip up in the two norms separately.",
    root="hopfield-triangle",
    perturbation=Perturbation(lambda factor: {"size": norm_1, "allowed": factor}, (0.8,)),
    changes_our_mind="A proof of Eq. 40 that does not add up composite norms, or an error in the example of a row and "
    "a column of ones.",
    mutation=becomes("holds", "the 1-norm alone", size=norm_1),
)
def triangle(run: AuditRun, size: Norm = norm_1_inf, allowed: float = 1.0) -> Evidence:
    """A row of ones and a column of ones, and random pairs.

    Holds if no case breaks it by more than 1e-9.
    """
    row, column = torch.zeros(2, 8, 8, dtype=torch.float64)
    row[0], column[:, 0] = 1.0, 1.0
    together, apart = size(row + column).item(), allowed * (size(row) + size(column)).item()
    count = run.pick(2000, 200)
    a, b = draws(run, 2 * count, 4, 4).chunk(2)
    broken = int((size(a + b) > allowed * (size(a) + size(b)) * (1 + ROUNDING)).sum())
    return Evidence(
        judge(together <= apart * (1 + ROUNDING) and broken == 0),
        f"A row plus a column of eight ones has size {together:.2f}, the two apart {apart:.2f}; {broken} of {count} "
        "random pairs break the inequality.",
        {"together": together, "apart": apart, "broken": broken, "cases": count},
    )


def mean_token(x: Tensor) -> Tensor:
    """Eq. 10."""
    return x.mean(dim=-2, keepdim=True)


@claim(
    "hopfield-eq8-10-mean",
    "Appendix D, Eq. 8 to 10",
    "The token nearest to all tokens in the Frobenius norm is their mean.",
    consequence="The residual is the tokens without their mean, which is what `metrics.residual` computes.",
    perturbation=Perturbation(lambda factor: {"centre": times(factor, mean_token)}),
    changes_our_mind="A token nearer to all others, in the Frobenius norm, than their mean.",
    mutation=becomes("fails", "the median of each component", centre=lambda x: x.median(dim=-2, keepdim=True).values),
)
def nearest_token(run: AuditRun, centre: Callable[[Tensor], Tensor] = mean_token) -> Evidence:
    """The gradient of the squared distance vanishes there and nowhere else: the problem is convex.

    Holds if the gradient is below 1e-9 of the tokens' size.
    """
    x = draws(run, run.pick(500, 50), 7, 3)
    slope = (2.0 * (centre(x) - x).sum(dim=-2)).abs().amax(dim=-1) / x.abs().sum(dim=(-1, -2))
    return Evidence(
        judge(slope.max().item() < ROUNDING),
        f"At that token the gradient of the distance is at most {slope.max():.1e} of the tokens' size.",
        {"cases": len(x), "largest gradient": slope.max().item()},
    )


def _centring(tokens: int) -> float:
    return 2.0 * (1.0 - 1.0 / tokens)


@claim(
    "hopfield-lemmaD1-centre",
    "Appendix D, after Eq. 12, and D.1, from Eq. 36 to 37",
    "The residual of a layer is MHA(X) - 1 z^T for certain z, so that Eq. 36 bounds it.",
    corrected="True of a residual about the z of Eq. 29. About the mean, as in Eq. 10, ||Res(X)|| <= 2 (1 - 1/N) "
    "||X - 1 z^T|| for every z, in the (1, inf) sense: the mean is not the nearest token there.",
    consequence="About the mean the proof owes a factor below 2. The lemma survives: its constant can be proved with "
    "2.35 in place of 4.",
    perturbation=Perturbation(lambda factor: {"factor": lambda tokens: factor * _centring(tokens)}, (0.8,)),
    changes_our_mind="A sentence of the paper that says which z the residual of a layer is about.",
    mutation=becomes("holds", "with the factor 2 (1 - 1/N)", factor=_centring),
)
def centring(run: AuditRun, factor: Callable[[int], float] = lambda tokens: 1.0) -> Evidence:
    """Residuals about the mean: of one token that differs from N - 1 equal ones, of two, of random tokens and z.

    Holds if none exceeds what a bound about z allows by more than 1e-9; under a condition if residuals about z do not.
    """
    tokens = 16
    x, two = torch.zeros(tokens, 1, dtype=torch.float64), torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    x[0] = 1.0
    own, other = norm_1_inf(residual(x)).item(), norm_1_inf(x).item()
    count = run.pick(2000, 200)
    many, z = draws(run, count, tokens, 3), draws(run, count, 1, 3)
    allowed = factor(tokens) * norm_1_inf(many - z) * (1 + ROUNDING)
    broken, about_z = (int((norm_1_inf(rest) > allowed).sum()) for rest in (residual(many), many - z))
    sharp = bool(norm_1_inf(residual(two)) <= factor(2) * norm_1_inf(two) * (1 + ROUNDING))  # equal for factor(2) = 1
    return Evidence(
        judge(sharp and own <= factor(tokens) * other and broken == 0, sharp and about_z == 0),
        f"With one token of {tokens} apart, the residual has size {own:.3f} about the mean and {other:.3f} about "
        f"another token; {broken} of {count} random cases exceed the bound, {about_z} with a residual about z.",
        {"about the mean": own, "about z": other, "allowed factor": factor(tokens), "broken": broken},
    )
