"""Bounds of the residual: the corrected ones hold for random layers, the printed ones fail at known cases."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.attention import AttentionOnly, ScoreRule
from uncollapse.metrics import norm_1, norm_1_inf, norm_inf, residual
from uncollapse.theory import (
    SPAN,
    column_factor,
    depth_bound,
    dong_bound,
    exact_residuals,
    layer_factor,
    residual_bounds,
    residual_coefficients,
)


def network(seed=0, depth=4, width=8, heads=2, size=1.0, **options):
    torch.manual_seed(seed)
    net = AttentionOnly(depth, width, heads, init="torch", **options).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(size)
    return net, torch.randn(3, 6, width, dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.0, "alpha_hidden": 0.5},
        {"alpha": 0.5, "alpha_hidden": 0.7, "start": "raw"},
        {"alpha": 0.0, "rule": ScoreRule.realformer(mean=True)},
        {"alpha": 0.3, "value_projection": False, "output_projection": False, "bias": False},
    ],
)
def test_exact_residuals_are_those_of_the_network(options):
    net, x = network(size=1.5, **options)
    with torch.no_grad():
        tokens = net(x)
    for state, after in zip(exact_residuals(net, x), tokens, strict=True):
        torch.testing.assert_close(state.after, residual(after), rtol=1e-9, atol=1e-13)
        torch.testing.assert_close(state.mean, after.mean(dim=1), rtol=1e-9, atol=1e-13)


def test_exact_residuals_go_below_rounding():
    net, x = network(depth=8, alpha=0.0, alpha_hidden=0.5)
    *_, last = exact_residuals(net, x)
    assert 0.0 < norm_1_inf(last.after).max() < 1e-17


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.3, 0.5]),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.floats(0.3, 4.0),
    st.sampled_from([1, 2, 4]),
)
def test_corrected_bounds_are_never_violated(seed, alpha, alpha_hidden, size, heads):
    net, x = network(seed, heads=heads, size=size, alpha=alpha, alpha_hidden=alpha_hidden)
    for row in residual_bounds(net, x):
        assert (row.measured <= row.corrected * (1 + 1e-9)).all()
        assert (row.measured <= row.corrected_depth * (1 + 1e-9)).all()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 12), st.floats(0.05, 3.0))
def test_norms_of_the_moved_attention(seed, tokens, span):
    """||P - 1p||_inf <= max |E|, ||P - 1p||_1 <= kappa(s) ||E||_1: the two steps of the proof."""
    torch.manual_seed(seed)
    r, e = 3 * torch.randn(tokens, dtype=torch.float64), torch.randn(tokens, tokens, dtype=torch.float64)
    e *= span / (e.amax(1) - e.amin(1)).max()
    moved = (r + e).softmax(dim=-1) - r.softmax(dim=-1)
    assert norm_inf(moved) <= span / 2 + 1e-12
    assert norm_inf(moved) <= e.abs().max() + 1e-12
    assert norm_1(moved) <= column_factor(span) * norm_1(e) + 1e-12


def test_printed_lemma_is_violated_with_scaled_scores():
    """N = 2, W_QK = 0, W_V = I, inherited scores [[.6, -.6], [0, 0]], alpha' = 1/2, d_k = 256."""
    inherited = torch.tensor([[0.6, -0.6], [0.0, 0.0]], dtype=torch.float64)
    assert (inherited.amax(1) - inherited.amin(1)).max() * 0.5 <= SPAN
    x = torch.eye(2, dtype=torch.float64)
    after = norm_1_inf(residual((0.5 * inherited).softmax(dim=-1) @ x)).item()
    before = norm_1_inf(residual(x)).item()

    def bound(form):
        cubic, linear = residual_coefficients(0.5, 0.0, 1.0, norm_1(inherited).item(), 256, tokens=2, form=form)
        return cubic * before**3 + linear * before

    assert bound("as_printed") < after <= bound("corrected")


def recursion(a, b, x, depth):
    for _ in range(depth):
        x = max(a * x**3, b * x)
    return x


@given(st.floats(0.01, 1.5), st.floats(0.01, 1.5), st.floats(0.05, 1.5), st.integers(1, 5))
def test_depth_bound_is_the_largest_leaf(a, b, x, depth):
    leaves = []
    for order in itertools.product((True, False), repeat=depth):
        value = math.log(x)
        for cubic in order:
            value = math.log(a) + 3 * value if cubic else math.log(b) + value
        leaves.append(value)
    bound = depth_bound(x, a / 2, b / 2, depth)
    assert bound == pytest.approx(math.exp(max(leaves)), rel=1e-6) or max(leaves) > 690
    assert recursion(a, b, x, depth) <= bound * (1 + 1e-9)


def test_printed_exponent_is_violated_below_one_and_right_above():
    a, b, x, depth = 1.0, 0.1, 0.9, 6
    assert depth_bound(x, a, b, depth, "as_printed") < 0.1 * recursion(a, b, x, depth)
    assert depth_bound(0.5, 1.2, 1.3, 4, "as_printed") == pytest.approx(depth_bound(0.5, 0.6, 0.65, 4))


def test_constants():
    assert column_factor(SPAN) == pytest.approx(1.378, abs=5e-4)
    assert layer_factor(10**9) == pytest.approx(2.347, abs=5e-4)
    assert dong_bound(0.5, 2.0, 3.0, head_size=4, heads=2) == pytest.approx(4 * 2 * 2 * 3 * 0.125 / 2)


def test_collapse_without_skip_is_faster_than_exponential():
    """alpha = 0: log ||R|| falls by log(alpha') more in every layer, like alpha'^(L^2/2), not at a rate."""
    net, x = network(depth=20, heads=1, alpha=0.0, alpha_hidden=0.5)
    logs = torch.stack([norm_1_inf(state.after) for state in exact_residuals(net, x)]).log().mean(dim=1)
    bend = logs.diff().diff()[6:].mean().item()
    assert bend == pytest.approx(math.log(0.5), abs=0.15)


def test_the_assumption_is_reported():
    small, x = network(size=0.1)
    large, _ = network(size=6.0)
    assert all(row.assumption == 1.0 and row.span <= SPAN for row in residual_bounds(small, x))
    assert next(residual_bounds(large, x)).assumption < 1.0


def test_networks_that_the_bounds_do_not_speak_of():
    net, x = network(layer_norm=True)
    with pytest.raises(ValueError, match="without LayerNorm"):
        next(residual_bounds(net, x))
    net, x = network()
    with pytest.raises(ValueError, match="float64"):
        next(residual_bounds(net, x.float()))
