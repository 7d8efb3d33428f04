"""How small the entropy of attention can be when the scores are bounded (Eq. 9 of the second paper; Zhai et al.)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from .form import Array, Form, check_form, check_tokens, positive


def entropy_lower_bound(nu: ArrayLike, T: int, form: Form = "corrected") -> Array:  # noqa: N803
    """The least entropy of softmax(u) over T keys when the Euclidean norm of u is at most nu.

    Corrected, exact for every T and attained by `entropy_minimiser` (Theorem 3.1 of Zhai et al.):

        log(1 + (T-1) b) + nu sqrt(T (T-1)) b / (1 + (T-1) b),    b = exp(-nu sqrt(T / (T-1)))

    It falls from log T at nu = 0 to 0. As printed (Eq. 9): ln(1 + T e^-nu) + nu e^(-nu/2) / (1/T + e^-nu), which has
    e^(-nu/2) in place of e^-nu and so exceeds log T: no lower bound of an entropy.

    >>> round(float(entropy_lower_bound(4.0, 64)), 2), round(float(entropy_lower_bound(4.0, 64, "as_printed")), 2)
    (2.88, 16.73)
    """
    check_form(form)
    tokens = check_tokens(T)
    norm = np.asarray(nu, dtype=np.float64)
    if not (norm >= 0.0).all():
        raise ValueError(f"nu bounds a norm and must not be negative, got {norm[~(norm >= 0.0)].flat[0]:g}.")
    if form == "as_printed":
        return np.asarray(
            np.log1p(tokens * np.exp(-norm)) + norm * np.exp(-norm / 2.0) / (1.0 / tokens + np.exp(-norm))
        )
    others = (tokens - 1) * np.exp(-norm * math.sqrt(tokens / (tokens - 1)))
    gap = norm * math.sqrt(tokens / (tokens - 1))
    return np.asarray(np.log1p(others) + gap * others / (1.0 + others))


def entropy_minimiser(nu: float, T: int) -> Array:  # noqa: N803
    """Scores of norm nu over T keys whose softmax has the least entropy: one key stands out, the rest are alike.

    >>> entropy_minimiser(2.0, 4).round(3).tolist()
    [1.732, -0.577, -0.577, -0.577]
    """
    tokens = check_tokens(T)
    scores = np.full(tokens, -nu / math.sqrt(tokens * (tokens - 1)))
    scores[0] = nu * math.sqrt((tokens - 1) / tokens)
    return scores


def scores_norm_bound(tokens: ArrayLike, weights: ArrayLike, temperature: float) -> float:
    """Nu = ||X X^T||_2 ||W_QK||_2 / lambda bounds the norm of every query's scores; X is (d, T), a token a column.

    The print leaves out 1/lambda.
    """
    x, w = np.asarray(tokens, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    size = np.linalg.norm(x, 2) ** 2 * np.linalg.norm(w, 2)
    return float(size / positive("temperature", temperature))
