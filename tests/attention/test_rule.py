"""Score rules: their coefficients are the papers' recursions, and bad numbers are refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uncollapse.attention.rule import ScoreRule

SHARE = st.floats(0.0, 1.0)
LAYER = st.integers(1, 50)


@given(alpha_hidden=SHARE, n=LAYER)
def test_hopfield_is_an_exponential_average_from_zero(alpha_hidden, n):
    keep, take = ScoreRule.hopfield(alpha_hidden).coefficients(n)
    assert take == 1.0 - alpha_hidden
    assert keep == (0.0 if n == 1 else alpha_hidden)


@given(alpha_hidden=SHARE)
def test_a_raw_start_takes_all_of_the_first_layer(alpha_hidden):
    rule = ScoreRule.hopfield(alpha_hidden, start="raw")
    assert rule.coefficients(1) == (0.0, 1.0)
    assert rule.coefficients(2) == (alpha_hidden, 1.0 - alpha_hidden)


@given(n=LAYER)
def test_self_attention_inherits_nothing(n):
    assert ScoreRule.self_attention().coefficients(n) == (0.0, 1.0)


@given(gate=SHARE, n=st.integers(2, 50))
def test_revit_gates_between_old_and_new(gate, n):
    assert ScoreRule.revit(gate).coefficients(1) == (0.0, 1.0)
    assert ScoreRule.revit(gate).coefficients(n) == (1.0 - gate, gate)


@given(scores=st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_realformer_is_the_sum_or_the_mean_of_all_layers(scores):
    hidden = {False: 0.0, True: 0.0}
    for mean in hidden:
        for n, score in enumerate(scores, start=1):
            keep, take = ScoreRule.realformer(mean=mean).coefficients(n)
            hidden[mean] = keep * hidden[mean] + take * score
    assert hidden[False] == pytest.approx(sum(scores), abs=1e-12)  # rounding of 20 additions
    assert hidden[True] == pytest.approx(sum(scores) / len(scores), abs=1e-12)


def test_only_hopfield_has_a_visible_skip_of_its_own():
    assert ScoreRule.hopfield().alpha == 0.5
    assert {r.alpha for r in (ScoreRule.self_attention(), ScoreRule.realformer(), ScoreRule.revit())} == {0.0}


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_shares_outside_the_unit_interval_are_refused(value):
    with pytest.raises(ValueError, match=r"alpha_hidden must lie in \[0, 1\]"):
        ScoreRule.hopfield(value)
    with pytest.raises(ValueError, match=r"gate must lie in \[0, 1\]"):
        ScoreRule.revit(value)


def test_an_unknown_start_names_the_known_ones():
    with pytest.raises(ValueError, match="start must be one of zero, raw, got 'warm'"):
        ScoreRule.hopfield(0.5, start="warm")


def test_layers_are_counted_from_one():
    with pytest.raises(ValueError, match="counted from 1"):
        ScoreRule.hopfield().coefficients(0)


def test_a_gate_may_be_a_tensor_and_nothing_else():
    gate = torch.nn.Parameter(torch.tensor([0.25, 0.5]))
    keep, take = ScoreRule.revit(gate).coefficients(2)
    assert take is gate
    assert torch.equal(keep, 1 - gate)
    with pytest.raises(ValueError, match=r"gate must be a number from 0 to 1, 'learned' or.*got 'often'"):
        ScoreRule.revit("often")
