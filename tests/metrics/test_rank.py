"""Norms and the residual ratio: closed forms and invariances."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.metrics import (
    effective_rank,
    norm_1,
    norm_1_inf,
    norm_inf,
    residual,
    residual_frobenius,
    residual_ratio,
    singular_values,
    stable_rank,
)


def matrices():
    return st.builds(
        lambda t, m, seed: torch.randn(t, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)),
        st.integers(2, 8),
        st.integers(1, 8),
        st.integers(0, 10_000),
    )


@settings(deadline=None)
@given(x=matrices())
def test_operator_norms_are_numpys(x):
    assert norm_1(x).item() == pytest.approx(np.linalg.norm(x.numpy(), 1))
    assert norm_inf(x).item() == pytest.approx(np.linalg.norm(x.numpy(), np.inf))
    assert norm_1_inf(x).item() == pytest.approx((norm_1(x) * norm_inf(x)).sqrt().item())


@settings(deadline=None)
@given(x=matrices())
def test_residual_has_zero_mean_and_forgets_a_common_offset(x):
    offset = torch.randn(x.shape[1], dtype=x.dtype)
    assert residual(x).mean(0).abs().max() < 1e-12  # rounding of float64 sums
    torch.testing.assert_close(residual(x + offset), residual(x))


@settings(deadline=None)
@given(x=matrices(), factor=st.floats(0.1, 100))
def test_residual_ratio_does_not_depend_on_scale_or_token_order(x, factor):
    torch.testing.assert_close(residual_ratio(factor * x), residual_ratio(x))
    torch.testing.assert_close(residual_ratio(x.flip(0)), residual_ratio(x))


def test_residual_ratio_closed_forms():
    assert residual_ratio(torch.ones(4, 3)) == 0
    assert residual_ratio(torch.zeros(4, 3)) == 0
    # one token differs: X = e_1 e_1^T, T = 4. Res has column sum 3/2 and row sum 3/4; X has 1 and 1.
    x = torch.zeros(4, 3)
    x[0, 0] = 1.0
    assert residual_ratio(x).item() == pytest.approx((3 / 2 * 3 / 4) ** 0.5)


def test_residual_ratio_gives_one_number_a_sequence():
    x = torch.randn(2, 3, 5, 4)
    ratios = residual_ratio(x)
    assert ratios.shape == (2, 3)
    torch.testing.assert_close(ratios[1, 2], residual_ratio(x[1, 2]))


def test_the_composite_is_not_a_norm():
    row, column = torch.zeros(8, 8), torch.zeros(8, 8)
    row[0], column[:, 0] = 1.0, 1.0
    assert norm_1_inf(row + column) > norm_1_inf(row) + norm_1_inf(column)


@settings(deadline=None)
@given(x=matrices())
def test_ranks_and_frobenius_are_those_of_an_svd(x):
    singular = np.linalg.svd(x.numpy(), compute_uv=False)
    share = singular / singular.sum()
    # values come from a Gram matrix: good to the root of float64's rounding of the largest
    np.testing.assert_allclose(singular_values(x).numpy(), singular, atol=1e-7 * singular[0])
    assert stable_rank(x).item() == pytest.approx((singular**2).sum() / singular[0] ** 2, rel=1e-9)
    assert effective_rank(x).item() == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-5)
    wanted = np.linalg.norm(x.numpy() - x.numpy().mean(0)) / np.linalg.norm(x.numpy())
    assert residual_frobenius(x).item() == pytest.approx(wanted)


def test_orthonormal_tokens_have_full_rank_and_copies_rank_one():
    assert stable_rank(torch.eye(6)).item() == pytest.approx(6)
    assert effective_rank(torch.eye(6)).item() == pytest.approx(6)
    copies = torch.randn(1, 5, generator=torch.Generator().manual_seed(0)).expand(7, 5)
    assert stable_rank(copies).item() == pytest.approx(1)
    assert effective_rank(copies).item() == pytest.approx(1, abs=1e-5)
    assert stable_rank(torch.zeros(3, 2)) == effective_rank(torch.zeros(3, 2)) == 0


@pytest.mark.parametrize("factor", [1e-30, 1e-22, 1e25])
def test_tokens_near_the_ends_of_float32_are_measured_like_any_others(factor):
    """Deep networks without normalisation shrink tokens below 1e-19, whose squares float32 cannot hold."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    for measure in (residual_ratio, residual_frobenius, stable_rank, effective_rank):
        assert measure(factor * x).item() == pytest.approx(measure(x).item(), rel=1e-5), measure.__name__


def test_nan_is_not_called_collapse():
    x = torch.ones(4, 3)
    x[0, 0] = float("nan")
    assert residual_ratio(x).isnan()
    assert residual_frobenius(x).isnan()
