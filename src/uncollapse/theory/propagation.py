"""Signal propagation of a Gaussian random walk of tokens: Lemma 1, Eq. 6 and Lemma 2 of the second paper.

g_i = <gamma^i, w> + gamma_0^i = (w_i - mean(w) + 1)/T with w = X^T W_QK x_T / lambda. Token i's signal propagates when
0 <= g_i <= 1. With W = W_QK Sigma: xi = tr W / sqrt(tr W^2), eta = sqrt(tr W^2) / lambda, so xi eta = tr W / lambda;
theta = i/T is the relative position. Numbers and arrays broadcast against each other; all is float64.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike

from .form import Array, Form, check_form, check_tokens, positive, relative_positions


def variance_factor(theta: ArrayLike, form: Form = "corrected", tokens: int | None = None) -> Array:
    """c(theta) in v = c tr(W^2)/lambda^2, the variance of Lemma 1.

    Corrected, T -> infinity: 2 theta^2 - 2 theta + 7/12; with `tokens` = T exactly for that T:
    + (1 - 2 theta)/T + 5/(12 T^2). As printed: 2 theta^2 + 7/12, where the proof's (B2) has T^2 i in place of 3 T^2 i.

    >>> variance_factor([0.0, 0.5, 1.0]).round(3), variance_factor([0.0, 0.5, 1.0], form="as_printed").round(3)
    (array([0.583, 0.083, 0.583]), array([0.583, 1.083, 2.583]))
    """
    check_form(form)
    theta = relative_positions(theta)
    if form == "as_printed":
        if tokens is not None:
            raise ValueError('tokens goes with form="corrected"; as printed there is the limit T -> infinity only.')
        return np.asarray(2.0 * theta**2 + 7.0 / 12.0)
    quadratic, square = asymmetric_variance_factors(theta, tokens)
    return np.asarray(quadratic + square)


def asymmetric_variance_factors(theta: ArrayLike, tokens: int | None = None) -> tuple[Array, Array]:
    """The two factors of the variance for any W_QK = M, symmetric or not.

        v = [ first tr(M Sigma M^T Sigma) + second tr(M Sigma M Sigma) ] / lambda^2

    first = theta^2 - theta + 1/3, second = (theta - 1/2)^2; with `tokens` exactly for that T. They come from
    Cov(a_i, a_j) = T min(i, j) tr(M Sigma M^T Sigma) + i j tr(M Sigma M Sigma), a_i = x_i^T M x_T. For a symmetric M
    the two traces are one and `variance_factor` is the sum.
    """
    theta = relative_positions(theta)
    step = 0.0 if tokens is None else 1.0 / check_tokens(tokens)
    first = theta * (theta - 1.0 - step) + (1.0 + step) * (2.0 + step) / 6.0
    second = (theta - (1.0 + step) / 2.0) ** 2
    return first, second


def asymmetric_variance(
    theta: ArrayLike, quadratic: float, square: float, temperature: float, tokens: int | None = None
) -> Array:
    """Variance of g for any W_QK, from quadratic = tr(M Sigma M^T Sigma) and square = tr(M Sigma M Sigma).

    >>> round(float(asymmetric_variance(0.5, quadratic=6.0, square=5.0, temperature=1.0)), 9)
    0.5
    """
    temperature_ = positive("temperature", temperature)
    first, second = asymmetric_variance_factors(theta, tokens)
    return np.asarray((first * quadratic + second * square) / temperature_**2)


def propagation_mean(theta: ArrayLike, xi: ArrayLike, eta: ArrayLike, tokens: int | None = None) -> Array:
    """Mean of g (Lemma 1): (theta - 1/2) xi eta; with `tokens` exactly (theta - 1/2 - 1/(2T)) xi eta + 1/T.

    >>> round(float(propagation_mean(1.0, xi=2.0, eta=0.5, tokens=10)), 9)
    0.55
    """
    theta = relative_positions(theta)
    step = 0.0 if tokens is None else 1.0 / check_tokens(tokens)
    return np.asarray((theta - (1.0 + step) / 2.0) * np.asarray(xi, dtype=np.float64) * positive("eta", eta) + step)


def propagation_variance(
    theta: ArrayLike, eta: ArrayLike, form: Form = "corrected", tokens: int | None = None
) -> Array:
    """Variance of g (Lemma 1): `variance_factor` times eta^2, for a symmetric W_QK."""
    return np.asarray(variance_factor(theta, form, tokens) * positive("eta", eta) ** 2)


def propagation_probability(mean: ArrayLike, variance: ArrayLike) -> Array:
    """P(0 <= g <= 1) for g ~ N(mean, variance): the Gaussian approximation of rho (Section 4).

    >>> round(float(propagation_probability(0.5, 0.25)), 4)
    0.6827
    """
    mean, deviation = np.asarray(mean, dtype=np.float64), np.sqrt(positive("variance", variance))
    low, high = -mean / deviation, (1.0 - mean) / deviation
    # in the upper tail both probabilities round to one: take the mirror image, which keeps the digits
    low, high = np.where(low > 0.0, -high, low), np.where(low > 0.0, -low, high)
    return np.asarray(_normal_cdf(high) - _normal_cdf(low))


def _normal_cdf(x: Array) -> Array:
    """Phi(x). Through erfc: `torch.special.ndtr` computes (1 + erf)/2, which is 0 in the lower tail."""
    return np.asarray(0.5 * torch.special.erfc(torch.as_tensor(-x * math.sqrt(0.5))))


def signal_propagation(
    theta: ArrayLike, xi: ArrayLike, eta: ArrayLike, form: Form = "corrected", tokens: int | None = None
) -> Array:
    """rho(theta), the probability that a token's signal propagates (Eq. 6).

    Args:
        theta: relative position i/T in [0, 1].
        xi: tr W / sqrt(tr W^2); |xi| <= sqrt(d).
        eta: sqrt(tr W^2) / lambda, positive.
        form: "corrected", or "as_printed" for the paper's own curve.
        tokens: T; the exact mean and variance for that T (corrected form only). None is the limit T -> infinity, which
            drops 1/T and is right only where eta and |xi eta| are large against 1/T: at a fixed T every token
            propagates as W -> 0.

    >>> round(float(signal_propagation(0.5, xi=0.0, eta=2.0)), 3)
    0.458
    >>> round(float(signal_propagation(0.5, xi=0.0, eta=2.0, form="as_printed")), 3)
    0.185
    >>> round(float(signal_propagation(0.5, xi=0.0, eta=0.001, tokens=40)), 3)
    1.0
    """
    return propagation_probability(
        propagation_mean(theta, xi, eta, tokens), propagation_variance(theta, eta, form, tokens)
    )


def signal_propagation_derivative(theta: ArrayLike, xi: ArrayLike, eta: ArrayLike, form: Form = "corrected") -> Array:
    """D rho / d theta in the limit T -> infinity (proof of Lemma 2.3).

    With u = 2 c, z1 = (theta - 1/2) xi / sqrt(u), z2 = z1 - 1/(eta sqrt(u)):

        rho' = pi^(-1/2) u^(-3/2) { e^(-z1^2) xi/6 - e^(-z2^2) [ xi/6 + (4 theta - 2)/eta ] }

    `form="as_printed"` is the expression of the paper's proof, which is not the derivative of its own Eq. 6: it lost
    the factor u'/2 in the quotient rule and carries xi in front of the term in 1/eta.

    >>> float(signal_propagation_derivative(0.5, xi=0.0, eta=1.0))
    0.0
    """
    theta, xi, eta = relative_positions(theta), np.asarray(xi, dtype=np.float64), positive("eta", eta)
    u = 2.0 * variance_factor(theta, form)
    first = np.exp(-(((theta - 0.5) * xi) ** 2) / u)
    second = np.exp(-(((theta - 0.5) * xi - 1.0 / eta) ** 2) / u)
    if form == "as_printed":
        slope = 4.0 * theta**2 - theta + 5.0 / 3.0
        bracket = (first * slope - second * (slope - 1.0 / eta)) * xi
    else:
        bracket = first * xi / 6.0 - second * (xi / 6.0 + (4.0 * theta - 2.0) / eta)
    return np.asarray(bracket / (np.sqrt(np.pi) * u**1.5))


def derivative_bound(theta: ArrayLike, xi: ArrayLike, eta: ArrayLike, form: Form = "corrected") -> Array:
    """An upper bound of |rho'| (Lemma 2.3): it tells when positions propagate alike.

    Corrected: pi^(-1/2) u^(-3/2) (|xi|/6 + |4 theta - 2|/eta e^(-z2^2)), which vanishes as (xi, eta) -> (0, 0) but not
    as xi -> 0 alone. The first term is |xi|/6 |e^(-z1^2) - e^(-z2^2)| at most, a difference of two numbers between 0
    and 1. As printed: pi^(-1/2) u^(-3/2) |xi| / eta, which is violated.
    """
    theta, xi, eta = relative_positions(theta), np.asarray(xi, dtype=np.float64), positive("eta", eta)
    u = 2.0 * variance_factor(theta, form)
    if form == "as_printed":
        size = np.abs(xi) / eta
    else:
        second = np.exp(-(((theta - 0.5) * xi - 1.0 / eta) ** 2) / u)
        size = np.abs(xi) / 6.0 + np.abs(4.0 * theta - 2.0) / eta * second
    return np.asarray(size / (np.sqrt(np.pi) * u**1.5))


def signal_propagation_limit(
    theta: ArrayLike, r: float, form: Form = "corrected", direction: int | None = None
) -> Array:
    """The limit of rho as xi -> +-infinity and eta -> 0 with xi eta = r (Lemma 2.1, 2.2).

    One between theta = 1/2 and theta = 1/2 + 1/r, zero outside. Corrected: 1/2 on either edge, where the Gaussian is
    cut in the middle (at 1/2 + 1/r that is so on the path xi eta = r; other paths give other values there). As printed:
    1 on the edges.

    Args:
        theta: relative position in [0, 1].
        r: the limit of xi eta = tr W / lambda.
        form: which statement.
        direction: 1 for xi -> infinity, -1 for xi -> -infinity; needed for r = 0 only, else the sign of r.

    >>> signal_propagation_limit([0.25, 0.5, 0.6, 0.75, 1.0], r=4.0)
    array([0. , 0.5, 1. , 0.5, 0. ])
    """
    check_form(form)
    theta = relative_positions(theta)
    if direction is None:
        if r == 0.0:
            raise ValueError("r = 0 does not say whether xi goes to +infinity or -infinity; give direction 1 or -1.")
        direction = 1 if r > 0.0 else -1
    if direction not in (1, -1) or direction * r < 0.0:
        raise ValueError(f"direction must be 1 or -1 and agree with the sign of r, got {direction} and r = {r:g}.")
    edge = 0.5 if form == "corrected" else 1.0
    above = np.heaviside(direction * (theta - 0.5), edge)  # Phi(z1) + 1/2
    below = np.heaviside(1.0 - (theta - 0.5) * r, edge)  # 1/2 - Phi(z2)
    return np.asarray(above * below)
