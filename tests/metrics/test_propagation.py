"""Signal propagation: the gate of a row, bins of relative position, localisation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.metrics import localisation, position_bins, propagates


@settings(deadline=None, max_examples=60)
@given(keys=st.integers(2, 30), spread=st.sampled_from([0.1, 1.0, 5.0, 50.0]), seed=st.integers(0, 10_000))
def test_a_token_propagates_when_its_gate_lies_between_0_and_1(keys, spread, seed):
    scores = np.random.default_rng(seed).standard_normal((3, keys)) * spread
    wanted = [[0 <= (w - row.mean() + 1) / keys <= 1 for w in row] for row in scores]
    assert propagates(torch.from_numpy(scores)).tolist() == wanted
    # a common shift of the scores changes neither attention nor propagation
    assert propagates(torch.from_numpy(scores) + 3.0).tolist() == wanted


def test_equal_scores_let_every_token_through():
    assert propagates(torch.full((5,), 7.0)).all()


def test_one_very_large_score_lets_no_token_through():
    assert not propagates(torch.tensor([0.0, 0.0, 0.0, 40.0])).any()


@settings(deadline=None, max_examples=40)
@given(keys=st.integers(1, 300), bins=st.integers(1, 64))
def test_bins_are_in_order_and_even(keys, bins):
    index = position_bins(keys, bins)
    assert index.min() >= 0
    assert index.max() < bins
    assert (index.diff() >= 0).all()
    counts = torch.bincount(index, minlength=bins)
    assert counts.max() - counts.min() <= 1


def test_localisation_closed_forms():
    for n in (2, 5, 64):
        single = torch.zeros(n)
        single[n // 2] = 0.3
        assert localisation(single).item() == pytest.approx(1 - 1 / n)
        assert localisation(torch.full((n,), 0.3)).item() == pytest.approx(0, abs=1e-6)
    assert localisation(torch.zeros(4)).item() == 0
