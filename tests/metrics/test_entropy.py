"""Entropy of attention rows from their scores, against a softmax in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.metrics import entropy, row_statistics
from uncollapse.metrics.entropy import HIDDEN

FLOAT32 = float(np.finfo(np.float32).eps)


def of(scores, first=0):
    scores = torch.as_tensor(scores, dtype=torch.float32)
    return row_statistics(scores.clone(), torch.full(scores.shape[:-1], first))


def naive(scores, visible):
    """Entropy, entropy without the first visible key, weight on it, in float64."""
    seen = np.asarray(scores, dtype=np.float64)[visible]
    return naive_entropy(softmax(seen)), naive_entropy(softmax(seen[1:])), softmax(seen)[0]


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def naive_entropy(weights):
    return -sum(w * math.log(w) for w in weights.tolist() if w > 0)


@pytest.mark.parametrize("keys", [2, 7, 1000])
def test_uniform_attention_has_entropy_log_k(keys):
    row = of(torch.full((keys,), 3.0))
    assert row.entropy.item() == pytest.approx(math.log(keys), rel=1e-6)
    assert row.entropy_no_first.item() == pytest.approx(math.log(keys - 1), rel=1e-6)
    assert row.first.item() == pytest.approx(1 / keys, rel=1e-6)
    assert entropy(torch.full((keys,), 1 / keys)).item() == pytest.approx(math.log(keys), rel=1e-5)


def test_one_hot_rows_have_entropy_zero():
    assert entropy(torch.eye(4)).tolist() == [0, 0, 0, 0]
    assert of([0.0, 200.0, 0.0, 0.0]).entropy.item() == 0


@settings(deadline=None, max_examples=100)
@given(
    keys=st.integers(3, 40),
    hidden=st.integers(0, 20),
    spread=st.sampled_from([0.1, 1.0, 10.0, 60.0]),
    offset=st.sampled_from([-1000.0, 0.0, 1000.0]),
    seed=st.integers(0, 10_000),
)
def test_rows_with_hidden_keys_equal_the_softmax_over_the_visible_ones(keys, hidden, spread, offset, seed):
    generator = np.random.default_rng(seed)
    scores = (generator.standard_normal(keys) * spread + offset).astype(np.float32)
    visible = np.ones(keys, dtype=bool)
    visible[generator.permutation(keys)[: min(hidden, keys - 2)]] = False
    row = of(np.where(visible, scores, HIDDEN), first=int(visible.argmax()))
    wanted, without, first = naive(scores, visible)
    # float32: an entropy is log(sum) - mean, each good to 6e-8 of itself; beside a sink the two are as large as 70
    assert row.entropy.item() == pytest.approx(wanted, rel=2e-6, abs=1e-6)
    position = int(visible.argmax())
    others = np.delete(scores, position)[np.delete(visible, position)]
    gap = abs(float(scores[position]) - float(others.max()))  # the two numbers are as large as that
    assert row.entropy_no_first.item() == pytest.approx(without, rel=2e-6, abs=1e-5 + 4 * FLOAT32 * gap)
    assert row.first.item() == pytest.approx(first, rel=1e-5, abs=1e-30)
    assert row.largest_score.item() == scores[visible].max()
    weights = row.exponentials / row.normaliser[..., None]
    assert weights.sum().item() == pytest.approx(1, rel=1e-6)
    assert weights[~torch.from_numpy(visible)].eq(0).all()


@pytest.mark.parametrize("gap", [5.0, 16.1, 40.0, 85.0, 95.0, 200.0, 5000.0])
def test_beside_a_sink_the_other_keys_keep_their_entropy(gap):
    """At a gap of 16 the first key has weight 1 - 1e-7: taking it off a sum in float32 would leave noise."""
    others = np.linspace(-1.0, 1.0, 12)
    scores = np.concatenate([[gap], others]).astype(np.float32)
    row = of(scores)
    wanted, without, first = naive(scores, slice(None))
    assert row.entropy_no_first.item() == pytest.approx(without, rel=1e-5)
    assert row.entropy.item() == pytest.approx(wanted, abs=2e-7)  # the rounding of 1 in float32
    assert row.first.item() == pytest.approx(first, rel=1e-6)


def test_a_row_that_sees_only_its_first_key_has_no_entropy_without_it():
    row = of([0.5, HIDDEN, HIDDEN])
    assert (row.entropy.item(), row.entropy_no_first.item(), row.first.item()) == (0, 0, 1)


def test_each_row_has_its_own_first_key():
    scores = torch.tensor([[HIDDEN, 2.0, 1.0, 0.0], [1.0, 2.0, HIDDEN, 0.0]])
    row = row_statistics(scores.clone(), torch.tensor([1, 0]))
    for index, visible in enumerate(([1, 2, 3], [0, 1, 3])):
        wanted, without, first = naive(scores[index].numpy(), visible)
        assert row.entropy[index].item() == pytest.approx(wanted, rel=1e-6)
        assert row.entropy_no_first[index].item() == pytest.approx(without, rel=1e-6)
        assert row.first[index].item() == pytest.approx(first, rel=1e-6)
