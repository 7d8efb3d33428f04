"""Rates from attention matrices: never violated, attained, and not vacuous where bounds from weights are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.attention import AttentionOnly
from uncollapse.metrics import residual
from uncollapse.theory import (
    birkhoff_coefficient,
    contraction_bounds,
    contraction_rate,
    dobrushin_coefficient,
    mixing_norm,
    residual_bounds,
)

ROUNDING = 1 + 1e-9  # relative; singular values in float64 are right to about 1e-14
seeds, sharpness = st.integers(0, 10**6), st.floats(0.01, 30.0)


def draw_scores(seed, tokens, size, causal=False, heads=()):
    torch.manual_seed(seed)
    scores = size * torch.randn(*heads, tokens, tokens, dtype=torch.float64)
    return scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf) if causal else scores


@settings(deadline=None, max_examples=150)
@given(seeds, st.integers(2, 12), sharpness, st.booleans(), st.sampled_from([1, 2, 4]), st.floats(0.0, 1.0))
def test_no_layer_exceeds_its_rate(seed, tokens, size, causal, heads, alpha):
    attention = draw_scores(seed, tokens, size, causal, (3, heads)).softmax(dim=-1)
    x, weights = torch.randn(3, tokens, 5, dtype=torch.float64), torch.randn(heads, 5, 5, dtype=torch.float64)
    after = alpha * x + (1 - alpha) * torch.einsum("bhts,bsm,hmn->btn", attention, x, weights)
    left, right = (torch.linalg.matrix_norm(residual(tokens)) for tokens in (after, x))
    assert (left <= contraction_rate(attention, weights, alpha) * right * ROUNDING + 1e-12).all()


@settings(deadline=None, max_examples=40)
@given(
    seeds,
    st.sampled_from([0.0, 0.3, 0.5]),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.floats(0.3, 4.0),
    st.sampled_from([1, 2, 4]),
)
def test_no_network_exceeds_its_rates(seed, alpha, alpha_hidden, size, heads):
    torch.manual_seed(seed)
    network = AttentionOnly(4, 8, heads, alpha=alpha, alpha_hidden=alpha_hidden, init="torch").double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(size)
    for row in contraction_bounds(network, torch.randn(3, 6, 8, dtype=torch.float64)):
        assert (row.measured <= row.one_layer * ROUNDING).all()
        assert (row.one_layer <= row.from_input * ROUNDING).all()


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(2, 10), sharpness, st.booleans())
def test_the_mixing_norm_is_attained(seed, tokens, size, causal):
    attention = draw_scores(seed, tokens, size, causal).softmax(dim=-1)
    centre = torch.eye(tokens, dtype=torch.float64) - 1.0 / tokens
    _, values, right = torch.linalg.svd(centre @ attention @ centre)
    x = right[0].unsqueeze(-1)  # one component per token
    assert mixing_norm(attention) == pytest.approx(values[0].item(), rel=1e-9, abs=1e-14)
    assert residual(attention @ x).norm() == pytest.approx(mixing_norm(attention).item(), rel=1e-6, abs=1e-12)
    assert mixing_norm(attention) <= math.sqrt(tokens / 2) * ROUNDING


def test_known_attention():
    tokens = 8
    halves = torch.zeros(tokens, tokens, dtype=torch.float64)
    halves[::2, 0], halves[1::2, 1] = 1.0, 1.0  # all tokens copy one of two in turn
    alike = torch.full((tokens, tokens), 1.0 / tokens, dtype=torch.float64)
    shift = torch.eye(tokens, dtype=torch.float64).roll(1, dims=0)
    assert mixing_norm(halves).item() == pytest.approx(math.sqrt(tokens / 2))  # the largest that there is
    assert (mixing_norm(alike).item(), dobrushin_coefficient(alike).item()) == (0.0, 0.0)
    assert mixing_norm(shift).item() == pytest.approx(1.0)
    assert dobrushin_coefficient(shift).item() == 1.0


@settings(deadline=None, max_examples=100)
@given(seeds, st.integers(2, 10), sharpness, st.booleans())
def test_tokens_come_closer_by_dobrushins_coefficient_in_every_norm(seed, tokens, size, causal):
    scores = draw_scores(seed, tokens, size, causal)
    attention, x = scores.softmax(dim=-1), torch.randn(tokens, 4, dtype=torch.float64)
    coefficient = dobrushin_coefficient(attention)
    for p in (1.0, 2.0, math.inf):
        before, after = (torch.cdist(rows, rows, p=p).max() for rows in (x, attention @ x))
        assert after <= coefficient * before * ROUNDING + 1e-12
    assert coefficient <= birkhoff_coefficient(scores) * ROUNDING + 1e-12


def test_birkhoffs_coefficient_follows_scores_that_hardly_differ():
    scores = draw_scores(0, 6, 1e-30)
    assert 0.0 < birkhoff_coefficient(scores).item() < 1e-29
    assert birkhoff_coefficient(draw_scores(0, 6, 1.0, causal=True)).item() == 1.0
    same = draw_scores(0, 6, 1.0)
    same[:, 3:] = -math.inf  # a mask that treats all rows alike
    assert birkhoff_coefficient(same).item() == pytest.approx(birkhoff_coefficient(_kept(same)).item())


def _kept(scores):
    """The same without the masked keys, made square by repeating a key: which changes no difference."""
    return scores[:, [0, 1, 2, 2, 2, 2]]


def test_a_common_row_may_be_left_out():
    attention = draw_scores(1, 7, 1.0, heads=(2, 3)).softmax(dim=-1)
    weights = torch.randn(3, 4, 4, dtype=torch.float64)
    less = attention - attention[..., :1, :]
    torch.testing.assert_close(mixing_norm(less), mixing_norm(attention))
    torch.testing.assert_close(dobrushin_coefficient(less), dobrushin_coefficient(attention))
    torch.testing.assert_close(contraction_rate(less, weights), contraction_rate(attention, weights))


@pytest.mark.parametrize("init", ["timm", "torch", "xavier"])
def test_the_bound_follows_the_collapse_at_the_width_of_a_vit(init):
    """ViT-T's width, 64 tokens, 8 layers, alpha = 0: within ten times of the residual in each layer."""
    torch.manual_seed(0)
    network = AttentionOnly(8, 192, 3, alpha=0.0, alpha_hidden=0.5, init=init).double()
    x = torch.randn(1, 64, 192, dtype=torch.float64)
    rows = list(contraction_bounds(network, x))
    assert all(row.one_layer.item() < 10.0 * row.measured.item() for row in rows)
    assert rows[-1].from_input.item() < 1e-6
    *_, last = residual_bounds(network, x)
    assert last.corrected_depth.item() > 1e10  # from the weights alone nothing is left of the collapse


def test_bad_input_is_one_sentence():
    attention = draw_scores(0, 4, 1.0, heads=(1, 2)).softmax(dim=-1)
    with pytest.raises(ValueError, match=r"as many keys as queries.*\(4, 3\)"):
        mixing_norm(attention[0, 0, :, :3])
    dropped = attention.clone()
    dropped[..., 0, :] = 0.0
    with pytest.raises(ValueError, match=r"rows of attention must have the same sum.*padding and dropout"):
        contraction_rate(dropped, torch.randn(2, 3, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"same sum.*nan"):
        mixing_norm(torch.full((3, 3), math.nan))
    with pytest.raises(ValueError, match=r"as many heads, got \(1, 2, 4, 4\) and \(3, 3, 3\)"):
        contraction_rate(attention, torch.randn(3, 3, 3, dtype=torch.float64))
