"""Lemma 1, Eq. 6 and Lemma 2: exact sums, finite differences, simulation."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import uncollapse as uc
from uncollapse.theory import (
    asymmetric_variance,
    asymmetric_variance_factors,
    derivative_bound,
    generator,
    piecewise_coefficients,
    piecewise_softmax,
    propagation_mean,
    propagation_probability,
    propagation_variance,
    qk_matrix,
    qk_statistics,
    random_walks,
    signal_propagation,
    signal_propagation_derivative,
    signal_propagation_limit,
    variance_factor,
)

positions = st.floats(0.0, 1.0)
xis = st.floats(-20.0, 20.0)
etas = st.floats(0.01, 50.0)
THETA = np.linspace(0.0, 1.0, 41)


@pytest.mark.parametrize("mean", [-30.0, -9.0, -1.0, 0.0, 0.3, 1.0, 2.0, 10.0, 31.0])
def test_probability_keeps_its_digits_far_from_the_mean(mean):
    near, far = sorted((abs(mean), abs(1.0 - mean)))
    wanted = math.erfc(near / math.sqrt(2)) / 2 - math.erfc(far / math.sqrt(2)) / 2
    if 0.0 <= mean <= 1.0:
        wanted = 1.0 - math.erfc(near / math.sqrt(2)) / 2 - math.erfc(far / math.sqrt(2)) / 2
    # float64 rounds x = 31 by 1e-16 of itself, and Phi(-x) by x^2 times as much
    assert float(propagation_probability(mean, 1.0)) == pytest.approx(wanted, rel=3e-13, abs=0.0)


def exact_factors(i: int, tokens: int) -> tuple[Fraction, Fraction, Fraction]:
    """Mean over tr W / lambda, and the two variance factors, as sums of Cov(a_j, a_k) with weights of gamma^i."""
    weights = [Fraction(j == i, tokens) - Fraction(1, tokens**2) for j in range(1, tokens + 1)]
    mean = sum(w * j for j, w in enumerate(weights, 1))
    first = sum(a * b * tokens * min(j, k) for j, a in enumerate(weights, 1) for k, b in enumerate(weights, 1))
    second = sum(a * b * j * k for j, a in enumerate(weights, 1) for k, b in enumerate(weights, 1))
    return mean, first, second


@pytest.mark.parametrize("tokens", [2, 3, 7, 20])
def test_finite_form_is_the_exact_sum(tokens):
    for i in range(1, tokens + 1):
        mean, first, second = exact_factors(i, tokens)
        theta = Fraction(i, tokens)
        assert mean == theta - Fraction(1, 2) - Fraction(1, 2 * tokens)
        closed = 2 * theta**2 - 2 * theta + Fraction(7, 12) + (1 - 2 * theta) / tokens + Fraction(5, 12 * tokens**2)
        assert first + second == closed
        np.testing.assert_allclose(
            asymmetric_variance_factors(i / tokens, tokens), [float(first), float(second)], atol=1e-14
        )
        np.testing.assert_allclose(variance_factor(i / tokens, tokens=tokens), float(closed), atol=1e-14)
        np.testing.assert_allclose(
            propagation_mean(i / tokens, xi=2.0, eta=1.5, tokens=tokens), 3.0 * float(mean) + 1 / tokens, atol=1e-14
        )


def test_limit_of_many_tokens_is_the_corrected_factor_and_not_the_printed_one():
    far = variance_factor(THETA, tokens=10**9)
    np.testing.assert_allclose(far, 2 * THETA**2 - 2 * THETA + 7 / 12, atol=1e-8)
    gap = variance_factor(THETA, form="as_printed") - far
    np.testing.assert_allclose(gap, 2 * THETA, atol=1e-8)  # the lost 2 T^2 i of (B2)


@given(positions, xis, etas)
def test_mirror_symmetry(theta, xi, eta):
    mirrored = signal_propagation(1.0 - theta, -xi, eta)
    assert signal_propagation(theta, xi, eta) == pytest.approx(mirrored, abs=1e-12, rel=1e-6)


@given(st.integers(2, 200), st.data(), xis, etas)
def test_mirror_symmetry_of_positions_at_finite_length(tokens, data, xi, eta):
    i = data.draw(st.integers(1, tokens))
    mirrored = signal_propagation((tokens + 1 - i) / tokens, -xi, eta, tokens=tokens)
    assert signal_propagation(i / tokens, xi, eta, tokens=tokens) == pytest.approx(mirrored, abs=1e-9, rel=1e-6)


def test_printed_form_has_no_mirror_symmetry():
    gap = signal_propagation(THETA, 2.0, 0.5, "as_printed") - signal_propagation(1 - THETA, -2.0, 0.5, "as_printed")
    assert np.abs(gap).max() > 0.2


@given(positions, xis, etas, st.sampled_from(["corrected", "as_printed"]))
def test_it_is_a_probability(theta, xi, eta, form):
    assert 0.0 <= signal_propagation(theta, xi, eta, form) <= 1.0


def test_derivative_agrees_with_finite_differences():
    theta, xi, eta = np.meshgrid(np.linspace(0.05, 0.95, 13), [-8.0, -1.0, 0.0, 0.5, 3.0], [0.2, 1.0, 4.0])
    step = 1e-6
    difference = (signal_propagation(theta + step, xi, eta) - signal_propagation(theta - step, xi, eta)) / (2 * step)
    np.testing.assert_allclose(signal_propagation_derivative(theta, xi, eta), difference, atol=1e-8)
    printed = signal_propagation_derivative(0.7, 2.0, 1.0, form="as_printed")
    own = signal_propagation(0.7 + step, 2.0, 1.0, "as_printed") - signal_propagation(
        0.7 - step, 2.0, 1.0, "as_printed"
    )
    assert abs(own / (2 * step) - printed) > 0.3  # the printed expression is not the derivative of the printed Eq. 6
    assert abs(own / (2 * step)) > derivative_bound(0.7, 2.0, 1.0, form="as_printed")  # and breaks the printed bound


@given(positions, xis, etas)
def test_derivative_stays_below_its_bound(theta, xi, eta):
    size = abs(signal_propagation_derivative(theta, xi, eta))
    assert size <= derivative_bound(theta, xi, eta) + 1e-12


def test_the_bound_of_the_derivative_is_attained():
    """In the middle, for a small eta, one of the two exponentials is 1 and the other 0; at xi = 0 only one is left."""
    for theta, xi, eta in ((0.5, 1.0, 0.05), (0.5, -3.0, 0.05), (0.8, 0.0, 2.0)):
        size = abs(signal_propagation_derivative(theta, xi, eta))
        assert derivative_bound(theta, xi, eta) == pytest.approx(size, rel=1e-9)


def test_traceless_weights_are_not_uniform():
    rho = signal_propagation([0.0, 0.5, 1.0], xi=0.0, eta=1e4)
    assert rho[1] / rho[0] == pytest.approx(np.sqrt(7.0), rel=1e-3)  # Lemma 2.3 says uniform
    small = signal_propagation(THETA, xi=1e-3, eta=1e-3)
    np.testing.assert_allclose(small, 0.5, atol=1e-3)  # what does hold: (xi, eta) -> (0, 0)


@pytest.mark.parametrize("r", [0.5, 2.0, 4.0, 8.0])
def test_limits_of_lemma_2(r):
    theta = np.array([0.1, 0.5, 0.5 + min(0.3 / r, 0.4), 0.5 + min(1.0 / r, 0.5), 0.97])
    rho = signal_propagation(theta, xi=1e7, eta=r / 1e7)
    np.testing.assert_allclose(rho, signal_propagation_limit(theta, r), atol=1e-6)
    np.testing.assert_allclose(
        signal_propagation(1 - theta, xi=-1e7, eta=r / 1e7), signal_propagation_limit(1 - theta, -r), atol=1e-6
    )
    assert signal_propagation_limit(0.5, r, form="as_printed") == 1.0


def test_signal_vanishes_with_the_scale():
    rho = signal_propagation(THETA, xi=3.0, eta=1e6)
    c = variance_factor(THETA)
    asymptote = np.exp(-(((THETA - 0.5) * 3.0) ** 2) / (2 * c)) / (1e6 * np.sqrt(2 * np.pi * c))
    np.testing.assert_allclose(rho, asymptote, rtol=1e-4)


def test_every_token_propagates_as_weights_vanish_at_fixed_length():
    np.testing.assert_allclose(signal_propagation(np.arange(1, 41) / 40, 1.0, 1e-4, tokens=40), 1.0, atol=1e-12)


@pytest.mark.parametrize("symmetric", [True, False])
def test_mean_and_variance_against_walks(symmetric):
    """Mean and variance of g over 20,000 walks, with a covariance that does not commute with W_QK."""
    width, tokens, walks, heat = 12, 20, 20_000, 3.0
    random = generator(1)
    factor = torch.randn(width, width, dtype=torch.float64, generator=random)
    covariance = (factor @ factor.mT / width + 0.1 * torch.eye(width)).numpy()
    weights = qk_matrix(width, 0.3, 0.5, random) if symmetric else factor / 4
    x = random_walks(walks, tokens, width, random, covariance)
    g = uc.metrics.softmax_tangent((x @ weights @ x[:, -1].unsqueeze(-1)).squeeze(-1) / heat).numpy()
    theta = np.arange(1, tokens + 1) / tokens
    s = qk_statistics(weights, covariance, heat)
    mean = (theta - 0.5 - 0.5 / tokens) * s.trace / heat + 1 / tokens
    variance = asymmetric_variance(theta, s.quadratic, s.square, heat, tokens)
    if symmetric:
        np.testing.assert_allclose(variance, propagation_variance(theta, s.eta, tokens=tokens))
        np.testing.assert_allclose(mean, propagation_mean(theta, s.xi, s.eta, tokens=tokens))
    assert np.abs((g.mean(0) - mean) / (g.std(0) / np.sqrt(walks))).max() < 4.5
    squares = (g - mean) ** 2
    assert np.abs((squares.mean(0) - variance) / (squares.std(0) / np.sqrt(walks))).max() < 4.5


def test_coefficients_rebuild_the_piecewise_softmax():
    scores = 4 * torch.randn(50, 6, dtype=torch.float64, generator=generator(0))
    gamma, offset = piecewise_coefficients(scores)
    rebuilt = (gamma.mT @ scores.unsqueeze(-1)).squeeze(-1) + offset
    torch.testing.assert_close(rebuilt, piecewise_softmax(scores))
    near = 1e-4 * scores
    torch.testing.assert_close(piecewise_softmax(near), near.softmax(-1), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"theta": 1.2, "xi": 0.0, "eta": 1.0}, r"theta .* must lie in \[0, 1\], got 1.2"),
        ({"theta": float("nan"), "xi": 0.0, "eta": 1.0}, r"theta .* must lie in \[0, 1\]"),
        ({"theta": 0.5, "xi": 0.0, "eta": 0.0}, "eta must be positive and finite, got 0"),
        ({"theta": 0.5, "xi": 0.0, "eta": [1.0, -2.0]}, "eta must be positive and finite, got -2"),
        ({"theta": 0.5, "xi": 0.0, "eta": 1.0, "tokens": 1}, "T must be a whole number of at least 2 tokens, got 1"),
        ({"theta": 0.5, "xi": 0.0, "eta": 1.0, "form": "printed"}, "form must be one of corrected, as_printed"),
        ({"theta": 0.5, "xi": 0.0, "eta": 1.0, "form": "as_printed", "tokens": 9}, "tokens goes with form"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        uc.theory.signal_propagation(**arguments)
    assert "\n" not in str(error.value)


def test_a_limit_needs_a_side():
    with pytest.raises(ValueError, match="give direction"):
        signal_propagation_limit(0.3, 0.0)
    np.testing.assert_array_equal(signal_propagation_limit([0.3, 0.7], 0.0, direction=-1), [1.0, 0.0])
