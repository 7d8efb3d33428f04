"""Chains (7) and (10) and Eq. 8: the corrected links never fail, the printed ones at known matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uncollapse.theory import chain_7, chain_10, eigenspectrum_variance

cases = st.tuples(st.integers(1, 7), st.integers(0, 10**6), st.booleans(), st.booleans())


def matrices(case):
    width, seed, symmetric, low_rank = case
    random = np.random.default_rng(seed)
    m = random.standard_normal((width, 1 if low_rank else width)) @ random.standard_normal(
        (1 if low_rank else width, width)
    )
    r = random.standard_normal((width, width))
    return (m + m.T if symmetric else m), r @ r.T / width + 0.05 * np.eye(width)


@given(cases)
def test_corrected_links_hold(case):
    m, sigma = matrices(case)
    assert all(link.holds for link in (*chain_7(m, sigma), *chain_10(m, sigma)))


@given(cases)
def test_printed_links_that_survive(case):
    m, sigma = matrices(case)
    seven, ten = chain_7(m, sigma, "as_printed", norm_1="entrywise"), chain_10(m, sigma, "as_printed")
    assert seven[1].holds
    assert seven[2].holds
    if case[2]:  # symmetric
        assert ten[0].holds
        assert ten[1].smaller <= ten[0].larger * (1 + 1e-12)  # the two ends of (10)


@pytest.mark.parametrize(
    ("links", "verdicts"),
    [
        (chain_7(np.eye(9), np.eye(9), "as_printed"), [False, True, False]),
        (chain_10(np.diag([1.0, -1.0]), np.eye(2), "as_printed"), [True, False]),
        (chain_10(np.array([[0.0, 1.0], [-1.0, 0.0]]), np.eye(2), "as_printed"), [False, False]),  # tr W^2 = -2
    ],
)
def test_counterexamples(links, verdicts):
    assert [link.holds for link in links] == verdicts


@given(cases)
def test_eigenspectrum_variance_is_that_of_the_eigenvalues(case):
    m, sigma = matrices((*case[:2], True, case[3]))
    eigenvalues = np.linalg.eigvals(m @ sigma).real
    expected = len(m) ** 2 * eigenvalues.var()
    assert eigenspectrum_variance(m, sigma) == pytest.approx(expected, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize(
    ("covariance", "sentence"),
    [
        (np.diag([1.0, 0.0]), "positive definite, its smallest eigenvalue is 0"),
        (np.outer([0.1, 0.7], [0.1, 0.7]), "positive definite"),
        ([[1.0, 0.5], [0.0, 1.0]], "symmetric"),
        ([[1.0, np.nan], [np.nan, 1.0]], "finite"),
        (np.eye(3), "2 x 2"),
    ],
)
def test_bad_covariance_is_one_sentence(covariance, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        chain_7(np.eye(2), covariance)
    assert "\n" not in str(error.value)
