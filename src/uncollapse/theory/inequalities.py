"""The second paper's chains of inequalities (7) and (10) and the eigenspectrum variance (8), link by link.

M = W_QK (d x d), Sigma the covariance of the tokens' steps, W = M Sigma.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from .form import Array, Form, check_form

ROUNDING = 1e-12  # relative: an equality counts as holding
Norm1 = Literal["operator", "entrywise"]


@dataclass(frozen=True)
class Link:
    """One inequality `smaller` <= `larger` of a chain, with the values of its two sides."""

    statement: str
    smaller: float
    larger: float

    @property
    def holds(self) -> bool:
        """Whether it is true here; a side that does not exist (NaN) makes it false."""
        return bool(self.smaller <= self.larger + ROUNDING * max(abs(self.smaller), abs(self.larger)))


def check_covariance(covariance: ArrayLike, width: int | None = None) -> Array:
    """A covariance as an array; it must be square, symmetric and positive definite.

    >>> check_covariance([[1.0, 2.0], [2.0, 1.0]])
    Traceback (most recent call last):
    ...
    ValueError: the covariance must be positive definite, its smallest eigenvalue is -1.
    """
    sigma = np.asarray(covariance, dtype=np.float64)
    if sigma.ndim != 2 or sigma.shape[0] != sigma.shape[1] or width not in (None, len(sigma)):
        expected = "square" if width is None else f"{width} x {width}"
        raise ValueError(f"the covariance must be {expected}, got shape {sigma.shape}.")
    if not np.isfinite(sigma).all():
        raise ValueError("the covariance must be finite, it holds NaN or infinity.")
    if not np.allclose(sigma, sigma.T, rtol=1e-10, atol=1e-12 * np.abs(sigma).max()):
        raise ValueError("the covariance must be symmetric; pass (S + S.T) / 2.")
    eigenvalues = np.linalg.eigvalsh(sigma)
    smallest = float(eigenvalues[0])
    if smallest <= len(sigma) * np.finfo(np.float64).eps * abs(float(eigenvalues[-1])):  # zero but for rounding
        raise ValueError(f"the covariance must be positive definite, its smallest eigenvalue is {smallest:.3g}.")
    return sigma


def eigenspectrum_variance(weights: ArrayLike, covariance: ArrayLike | None = None) -> float:
    """d^2 Var(w_i) = d tr(W^2) - (tr W)^2 (Eq. 8): 0 when all eigenvalues of W = W_QK Sigma are alike.

    It is a variance where the eigenvalues are real: W_QK symmetric, Sigma positive definite.

    >>> eigenspectrum_variance([[1.0, 0.0], [0.0, 3.0]])
    4.0
    """
    m = np.asarray(weights, dtype=np.float64)
    w = m if covariance is None else m @ check_covariance(covariance, len(m))
    return float(len(w) * np.trace(w @ w) - np.trace(w) ** 2)


def chain_7(
    weights: ArrayLike, covariance: ArrayLike, form: Form = "corrected", norm_1: Norm1 = "operator"
) -> list[Link]:
    """Eq. 7: how |tr W| bounds the norms of W_QK that slow rank collapse in Dong's theorem.

    As printed: |tr W| / (sqrt(d) ||Sigma||_2) <= ||M||_2 <= ||M||_F <= ||M||_1. The first link fails at
    M = Sigma = I; the third needs the entrywise norm (`norm_1="entrywise"`), not the operator norm of Dong's theorem.
    Corrected, for any M: |tr W| = |<M, Sigma>| is at most ||M||_F ||Sigma||_F and at most
    ||M||_2 ||Sigma||_*, which gives the Frobenius norm with sqrt(d) or the spectral norm with d.

    >>> [link.holds for link in chain_7(np.eye(4), np.eye(4), form="as_printed")]
    [False, True, False]
    >>> [link.holds for link in chain_7(np.eye(4), np.eye(4))]
    [True, True, True]
    """
    check_form(form)
    m = np.asarray(weights, dtype=np.float64)
    sigma = check_covariance(covariance, len(m))
    d, trace, top = len(m), abs(float(np.trace(m @ sigma))), float(np.linalg.norm(sigma, 2))
    spectral, frobenius, one = _norm(m, 2), _norm(m, "fro"), _norm_1[norm_1](m)
    if form == "as_printed":
        return [
            Link("|tr W| / (sqrt(d) ||Sigma||_2) <= ||M||_2", trace / (math.sqrt(d) * top), spectral),
            Link("||M||_2 <= ||M||_F", spectral, frobenius),
            Link(f"||M||_F <= ||M||_1 ({norm_1})", frobenius, one),
        ]
    return [
        Link("|tr W| / (sqrt(d) ||Sigma||_2) <= ||M||_F", trace / (math.sqrt(d) * top), frobenius),
        Link("|tr W| / (d ||Sigma||_2) <= ||M||_2", trace / (d * top), spectral),
        Link("||M||_2 <= sqrt(||M||_1 ||M||_inf)", spectral, math.sqrt(_norm(m, 1) * _norm(m, np.inf))),
    ]


def chain_10(weights: ArrayLike, covariance: ArrayLike, form: Form = "corrected") -> list[Link]:
    """Eq. 10: how tr(W^2) bounds the spectral norm of W_QK, and with it the entropy.

    As printed: ||Sigma^-1||_F sqrt(tr W^2) >= |tr M| >= ||M||_2; the second link fails for every traceless M, the first
    for an asymmetric M, where tr W^2 can be negative. Corrected, for any M: N = Sigma^(1/2) M Sigma^(1/2) has
    ||N||_F^2 = tr(M Sigma M^T Sigma), which is tr W^2 for a symmetric M, and M = Sigma^(-1/2) N Sigma^(-1/2), so
    ||Sigma^-1||_2 ||N||_F >= ||M||_F >= ||M||_2.

    >>> [link.holds for link in chain_10(np.diag([1.0, -1.0]), np.eye(2), form="as_printed")]
    [True, False]
    """
    check_form(form)
    m = np.asarray(weights, dtype=np.float64)
    sigma = check_covariance(covariance, len(m))
    inverse = np.asarray(np.linalg.inv(sigma), dtype=np.float64)
    spectral = _norm(m, 2)
    if form == "as_printed":
        square = float(np.trace(m @ sigma @ m @ sigma))
        root, trace = math.sqrt(square) if square >= 0.0 else math.nan, abs(float(np.trace(m)))
        return [
            Link("|tr M| <= ||Sigma^-1||_F sqrt(tr W^2)", trace, _norm(inverse, "fro") * root),
            Link("||M||_2 <= |tr M|", spectral, trace),
        ]
    root = math.sqrt(max(float(np.trace(m @ sigma @ m.T @ sigma)), 0.0))
    return [
        Link("||M||_F <= ||Sigma^-1||_2 sqrt(tr M Sigma M' Sigma)", _norm(m, "fro"), _norm(inverse, 2) * root),
        Link("||M||_2 <= ||M||_F", spectral, _norm(m, "fro")),
    ]


def _norm(matrix: Array, order: float | Literal["fro"]) -> float:
    return float(np.linalg.norm(matrix, order))


_norm_1: dict[str, Callable[[Array], float]] = {
    "operator": lambda m: _norm(m, 1),
    "entrywise": lambda m: float(np.abs(m).sum()),
}
