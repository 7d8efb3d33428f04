"""Gaussian moments of quadratic forms (Lemma 3) and those of a random walk (Lemma 4, Eq. 22) of the second paper.

W is symmetric; t1 = tr(W Sigma), t2 = tr(W Sigma W Sigma). The walk is x_1 ~ N(0, Sigma), x_{t+1} ~ N(x_t, Sigma), so
that Cov(x_i, x_j) = min(i, j) Sigma.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .form import Array, Form, check_form


@dataclass(frozen=True)
class GaussianMoments:
    """Lemma 3: moments of x ~ N(m, Sigma)."""

    quadratic: float  # E[x' W x] (11)
    second: Array  # E[x x'] (12)
    cubic: float  # E[a' W x x' W x] (13)
    quartic: float  # E[(x' W x)^2] (14)


def gaussian_moments(weights: ArrayLike, covariance: ArrayLike, mean: ArrayLike, vector: ArrayLike) -> GaussianMoments:
    """Eq. 11 to 14 for x ~ N(mean, covariance), a fixed `vector` a and symmetric weights; right as printed.

    >>> gaussian_moments([[1.0]], [[1.0]], [0.0], [1.0]).quartic  # E[x^4] of a standard normal
    3.0
    """
    w, sigma, m, a = (np.asarray(v, dtype=np.float64) for v in (weights, covariance, mean, vector))
    t1, t2 = np.trace(w @ sigma), np.trace(w @ sigma @ w @ sigma)
    level, spread = m @ w @ m, m @ w @ sigma @ w @ m
    return GaussianMoments(
        quadratic=float(t1 + level),
        second=sigma + np.outer(m, m),
        cubic=float(2.0 * a @ w @ sigma @ w @ m + a @ w @ m * (t1 + level)),
        quartic=float(2.0 * t2 + t1**2 + 4.0 * spread + 2.0 * t1 * level + level**2),
    )


@dataclass(frozen=True)
class WalkMoments:
    """Lemma 4 for positions i <= j, and Eq. 22 for a last token T."""

    quadratic: float  # E[x_i' W x_i] (15)
    quartic: float  # E[(x_i' W x_i)^2] (16)
    cross: float  # E[(x_i' W x_j)^2] (17)
    mixed: float  # E[x_i' W x_j x_j' W x_j] (18)
    last: float | None  # E[x_i' W x_T x_j' W x_T] (22); None without T


def walk_moments(
    i: int, j: int, t1: float, t2: float, tokens: int | None = None, form: Form = "corrected"
) -> WalkMoments:
    """Eq. 15 to 18 and 22, from t1 = tr(W Sigma) and t2 = tr(W Sigma W Sigma).

    Isserlis' theorem with Cov(x_i, x_j) = min(i, j) Sigma gives the corrected form, for any i <= j <= T. The print
    starts the walk at x_1 = 0 in (15) and shifts (16) to (18) by constants: it agrees in the leading order only.

    >>> walk_moments(1, 1, t1=1.0, t2=1.0).quadratic, walk_moments(1, 1, 1.0, 1.0, form="as_printed").quadratic
    (1.0, 0.0)
    """
    check_form(form)
    last_position = j if tokens is None else tokens
    if not 1 <= i <= j <= last_position:
        raise ValueError(f"positions must satisfy 1 <= i <= j <= T, got i = {i}, j = {j}, T = {tokens}.")
    if form == "as_printed":
        return WalkMoments(
            quadratic=(i - 1) * t1,
            quartic=(i**2 - 2 * i + 2) * (2 * t2 + t1**2),
            cross=(i**2 + i * j - 3 * i - j + 4) * t2 + (i**2 - 2 * i + 2) * t1**2,
            mixed=(i * j - i - j + 2) * (2 * t2 + t1**2),
            last=None
            if tokens is None
            else (i * j + (tokens - 2) * i - j - (tokens - 4)) * t2 + (i * j - i - j + 2) * t1**2,
        )
    return WalkMoments(
        quadratic=i * t1,
        quartic=i**2 * (2 * t2 + t1**2),
        cross=(i**2 + i * j) * t2 + i**2 * t1**2,
        mixed=i * j * (2 * t2 + t1**2),
        last=None if tokens is None else (i * j + tokens * i) * t2 + i * j * t1**2,
    )
