"""The sampler and the simulation of Figure 5 at a small size."""

import math

import numpy as np
import pytest
import torch

from tests.extras import needs_scipy
from uncollapse.theory import (
    anisotropic_covariance,
    generator,
    qk_matrix,
    qk_statistics,
    random_walk,
    random_walks,
    signal_propagation,
    simulate,
)

SMALL = {"width": 32, "tokens": 12, "walks": 400, "draws": 4}


def test_walks_have_the_covariance_asked_for():
    covariance = anisotropic_covariance(3, generator(5)) + 0.1 * np.eye(3)
    x = random_walks(100_000, 4, 3, generator(0), covariance)
    measured = (x[:, 1].mT @ x[:, 3] / len(x)).numpy()  # Cov(x_2, x_4) = 2 Sigma
    np.testing.assert_allclose(measured, 2 * covariance, atol=6 * 4 * np.abs(covariance).max() / math.sqrt(len(x)))


def test_qk_matrix_has_the_spectrum_asked_for():
    w = qk_matrix(200, mean=0.3, scale=0.1, random=generator(0))
    torch.testing.assert_close(w, w.mT)
    eigenvalues = torch.linalg.eigvalsh(w)
    assert eigenvalues.mean().item() == pytest.approx(0.3, abs=4 * 0.1 / 14)
    assert eigenvalues.std().item() == pytest.approx(0.1, rel=0.2)


@needs_scipy
@pytest.mark.parametrize("mean", [0.0, 0.05, 0.4])
def test_theory_lies_near_the_simulation(mean):
    [run] = simulate([(mean, 0.2)], **SMALL)
    theory = np.mean([s.propagation(12) for s in run.statistics], axis=0)
    assert np.abs(run.rho.mean - theory).max() < 0.06  # Gaussian approximation at d = 32, and 1,600 walks
    theta = np.arange(1, 13) / 12
    same = np.mean([signal_propagation(theta, s.xi, s.eta, tokens=12) for s in run.statistics], axis=0)
    np.testing.assert_allclose(theory, same)
    printed = np.mean([signal_propagation(theta, s.xi, s.eta, "as_printed") for s in run.statistics], axis=0)
    assert np.abs(run.rho.mean - printed).max() > 0.15


@needs_scipy
def test_a_seed_gives_the_same_numbers_and_chunks_change_only_the_walks(monkeypatch):
    first, again = (simulate([(0.1, 0.1)], **SMALL, seed=7)[0] for _ in range(2))
    np.testing.assert_array_equal(first.rho.mean, again.rho.mean)
    monkeypatch.setattr(random_walk, "CHUNK_BYTES", 8 * 12 * 32 * 50)  # chunks of 50 walks
    chunked = simulate([(0.1, 0.1)], **SMALL, seed=7)[0]
    np.testing.assert_allclose(chunked.rho.mean, first.rho.mean, atol=1e-12)
    assert chunked.entropy.mean == pytest.approx(float(first.entropy.mean))


@needs_scipy
def test_bands_contain_the_mean_and_narrow_with_draws():
    wide, narrow = (simulate([(0.05, 0.3)], **{**SMALL, "draws": draws})[0] for draws in (3, 24))
    for run in (wide, narrow):
        assert (run.rho.low <= run.rho.mean).all()
        assert (run.rho.mean <= run.rho.high).all()
        assert 0.0 <= run.entropy.low <= run.entropy.mean <= run.entropy.high <= math.log(12)
    assert (narrow.rho.high - narrow.rho.low).mean() < (wide.rho.high - wide.rho.low).mean()


@needs_scipy
def test_entropy_falls_with_the_mean_of_the_eigenvalues():
    """Section 5 says that localised rho means high entropy; in the paper's own model it does not."""
    runs = simulate([(0.0, 0.01), (0.1, 0.01), (0.4, 0.01)], **SMALL)
    entropies = [float(run.last_entropy.mean) for run in runs]
    assert entropies[0] > 0.9 * math.log(12)
    assert entropies[0] > entropies[1] > entropies[2]


def test_traces_of_asymmetric_weights():
    m = np.array([[0.0, 2.0], [-1.0, 1.0]])
    sigma = np.array([[2.0, 0.5], [0.5, 1.0]])
    s = qk_statistics(m, sigma, temperature=3.0)
    assert s.trace == pytest.approx(np.trace(m @ sigma))
    assert s.square == pytest.approx(np.trace(m @ sigma @ m @ sigma))
    assert s.quadratic == pytest.approx(np.trace(m @ sigma @ m.T @ sigma))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"covariance": -np.eye(32)}, "positive definite"),
        ({"tokens": 1}, "at least 2 tokens"),
        ({"draws": 0}, "walks and draws must be at least 1"),
        ({"temperature": 0.0}, "temperature must be positive"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        simulate([(0.0, 0.1)], **{**SMALL, **arguments})
    assert "\n" not in str(error.value)
