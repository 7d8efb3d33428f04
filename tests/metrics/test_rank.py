"""Norms and the residual ratio: closed forms and invariances."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.metrics import norm_1, norm_1_inf, norm_inf, residual, residual_ratio


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
