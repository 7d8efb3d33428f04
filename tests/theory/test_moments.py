"""Lemma 3 and Lemma 4 against samples: a z-score of every moment."""

import numpy as np
import pytest
import torch

from uncollapse.theory import gaussian_moments, generator, random_walks, walk_moments

WALKS = 400_000
WEIGHTS = np.array([[1.0, 0.4], [0.4, -0.3]])
COVARIANCE = np.array([[1.0, -0.2], [-0.2, 0.5]])
T1, T2 = np.trace(WEIGHTS @ COVARIANCE), np.trace(WEIGHTS @ COVARIANCE @ WEIGHTS @ COVARIANCE)


def z_score(samples: np.ndarray, expected: float) -> float:
    return float((samples.mean() - expected) / (samples.std() / np.sqrt(len(samples))))


def test_lemma_3():
    mean, vector = np.array([0.7, -0.4]), np.array([0.2, 1.0])
    x = np.random.default_rng(0).multivariate_normal(mean, COVARIANCE, WALKS, method="cholesky")
    quadratic = np.einsum("ni,ij,nj->n", x, WEIGHTS, x)
    moments = gaussian_moments(WEIGHTS, COVARIANCE, mean, vector)
    assert abs(z_score(quadratic, moments.quadratic)) < 4
    assert abs(z_score(x[:, 0] * x[:, 1], moments.second[0, 1])) < 4
    assert abs(z_score(x @ WEIGHTS @ vector * quadratic, moments.cubic)) < 4
    assert abs(z_score(quadratic**2, moments.quartic)) < 4


@pytest.fixture(scope="module")
def walks():
    return random_walks(WALKS, 5, 2, generator(3), COVARIANCE)


def samples(walks, i, j):
    x, y, last = (walks[:, t - 1] for t in (i, j, 5))
    w = torch.as_tensor(WEIGHTS)

    def form(a, b):
        return ((a @ w) * b).sum(-1)

    return {
        "quadratic": form(x, x),
        "quartic": form(x, x) ** 2,
        "cross": form(x, y) ** 2,
        "mixed": form(x, y) * form(y, y),
        "last": form(x, last) * form(y, last),
    }


@pytest.mark.parametrize(("i", "j"), [(1, 1), (1, 3), (2, 3), (3, 5)])
def test_lemma_4_and_equation_22(walks, i, j):
    exact = walk_moments(i, j, T1, T2, tokens=5)
    printed = walk_moments(i, j, T1, T2, tokens=5, form="as_printed")
    off = 0
    for name, drawn in samples(walks, i, j).items():
        assert abs(z_score(drawn.numpy(), getattr(exact, name))) < 4, name
        off += abs(z_score(drawn.numpy(), getattr(printed, name))) > 10
    assert off >= 1  # every pair of positions refutes at least one printed line


def test_printed_moments_agree_in_the_leading_order_only():
    exact, printed = (walk_moments(10**5, 10**6, T1, T2, 10**6, form) for form in ("corrected", "as_printed"))
    for name in ("quadratic", "quartic", "cross", "mixed", "last"):
        assert getattr(printed, name) == pytest.approx(getattr(exact, name), rel=1e-4)
        assert getattr(printed, name) != getattr(exact, name)


def test_positions_are_ordered():
    with pytest.raises(ValueError, match="1 <= i <= j <= T"):
        walk_moments(3, 2, 1.0, 1.0)
