"""The bound of how far attention brings tokens together: never broken, attained, and the same from sums."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.metrics import mixing_bound, residual
from uncollapse.theory import mixing_norm


def attention_of(seed, tokens, size, causal, dtype=torch.float64):
    torch.manual_seed(seed)
    scores = size * torch.randn(tokens, tokens, dtype=dtype)
    hidden = torch.ones(tokens, tokens).triu(1).bool()
    return (scores.masked_fill(hidden, -math.inf) if causal else scores).softmax(dim=-1)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 10**6),
    st.integers(2, 16),
    st.floats(0.0, 30.0),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_attention_leaves_more(seed, tokens, size, causal, dtype):
    attention = attention_of(seed, tokens, size, causal, dtype)
    bound = mixing_bound(attention).double()
    assert mixing_norm(attention.double() / attention.double().sum(dim=-1, keepdim=True)) <= bound * (1 + 1e-6)
    x = torch.randn(tokens, 3, dtype=torch.float64)
    assert residual(attention.double() @ x).norm() <= bound * residual(x).norm() * (1 + 1e-6) + 1e-12
    assert bound <= math.sqrt(tokens / 2) * 1.001  # no more than the largest that there is, 0.001 for rounding


def test_where_it_is_attained():
    tokens = 8
    halves = torch.zeros(tokens, tokens, dtype=torch.float64)
    halves[::2, 0], halves[1::2, 1] = 1.0, 1.0  # all tokens copy one of two in turn
    shift = torch.eye(tokens, dtype=torch.float64).roll(1, dims=0)
    for attention in (halves, shift, torch.eye(tokens, dtype=torch.float64)):
        assert mixing_bound(attention).item() == pytest.approx(mixing_norm(attention).item(), rel=1e-9)
    alike = torch.rand(tokens, dtype=torch.float64).softmax(dim=-1).expand(tokens, tokens)
    assert mixing_bound(alike).item() < 1e-7
    assert mixing_bound(alike.float()).item() < 2e-3  # what rounding of float32 leaves
