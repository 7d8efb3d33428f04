"""The compiled pass over attention rows: its numbers are those of float64 and of the torch tiles."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import uncollapse as uc
from tests.diagnosis.row_cases import random_layer
from uncollapse.attention import row_statistics
from uncollapse.attention.masking import Masking
from uncollapse.attention.row_statistics import compiled_largest, compiled_rows
from uncollapse.attention.scores import CappedScores, QueryKeyScores
from uncollapse.diagnosis.attention_rows import largest_logits
from uncollapse.diagnosis.attention_statistics import AttentionStatistics

EXP = 3e-6  # relative: the exponential is good to 20 units of float32's rounding


@pytest.fixture(autouse=True)
def _however_small(monkeypatch):
    monkeypatch.setattr(row_statistics, "WORTH", 0)


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def entropy(weights):
    weights = weights[weights > 0]
    return -(weights * np.log(weights)).sum()


def in_float64(source, seen):
    """Each field from the whole map, straight from the definitions."""
    batch, heads, queries, keys = source.shape
    k = source.k.double().repeat_interleave(heads // source.k.shape[1], dim=1)
    scores = (source.q.double() @ k.mT * source.scale).numpy()
    fields = {name: np.zeros((batch, heads, queries)) for name in ROW_FIELDS}
    received, of_all = np.zeros((2, batch, heads, keys))
    for at in np.ndindex(batch, heads, queries):
        visible = seen[at].numpy()
        row = scores[at][visible]
        if not len(row):
            continue
        weights, ordered = softmax(row), np.sort(row)
        values = {
            "sums": row.sum(),
            "squares": (row**2).sum(),
            "entropy": entropy(weights),
            "entropy_no_first": entropy(softmax(row[1:])) if len(row) > 1 else 0.0,
            "first": weights[0],
            "largest_score": row.max(),
            "gap": ordered[-1] - ordered[-2] if len(row) > 1 else 0.0,
            "weight_squares": (weights**2).sum(),
        }
        for name, value in values.items():
            fields[name][at] = value
        of_all[at[:2]][visible] += weights
        received[at[:2]][visible] += weights * (len(row) > 1)
    return fields | {"received": received, "received_of_all": of_all}


ROW_FIELDS = (
    "sums",
    "squares",
    "entropy",
    "entropy_no_first",
    "first",
    "largest_score",
    "gap",
    "weight_squares",
)


@settings(deadline=None, max_examples=100)
@given(number=st.integers(0, 100_000))
def test_every_field_is_that_of_float64(number):
    source, masking, seen = random_layer(number)
    rows = compiled_rows(source, masking)
    for name, wanted in in_float64(source, seen).items():
        found = getattr(rows, name).double().numpy()
        exact = name in ("largest_score", "gap")  # the scores are exact, and so are their differences
        # beside a sink an entropy without it is a small difference of two numbers of up to 70
        close = {"rtol": 0 if exact else EXP, "atol": 0 if exact else 4e-5 if name == "entropy_no_first" else 3e-6}
        np.testing.assert_allclose(found, wanted, **close, err_msg=f"{name} of layer {number}")
    largest = compiled_largest(source, masking)
    some = seen.any(dim=-1)
    assert torch.equal(largest[some], rows.largest_score[some])
    assert (largest[~some] == -math.inf).all()


def statistics(source, masking, native, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
    assert (compiled_rows(source, masking) is not None) == (native == "1")
    found = AttentionStatistics(source.shape[1])
    found.add(source, masking)
    return found, largest_logits(source, masking)


@pytest.mark.parametrize("number", range(36))
def test_the_statistics_are_those_of_the_torch_tiles(number, monkeypatch):
    source, masking, _ = random_layer(number)
    ours, our_largest = statistics(source, masking, "1", monkeypatch)
    theirs, their_largest = statistics(source, masking, "0", monkeypatch)
    assert our_largest[1] == their_largest[1] is False
    assert torch.equal(our_largest[0], their_largest[0])
    assert torch.equal(our_largest[0], ours.logit_max)
    for name, column in theirs.columns().items():
        # 0 where all tokens are mixed into one is a difference of two sums: what rounding leaves of it, as a root
        loose = {"rtol": 1e-5, "atol": 2e-3} if name == "mixing_bound" else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(ours.columns()[name], column, equal_nan=True, **loose, msg=name)
    torch.testing.assert_close(ours.groups, theirs.groups, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.rows, theirs.rows)
    assert (ours.entropy_counts - theirs.entropy_counts).abs().sum() <= 0.02 * theirs.entropy_counts.sum() + 2


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_that_are_not_finite_are_left_out_and_told(wrong, causal, monkeypatch):
    q, k = torch.randn(2, 1, 3, 40, 8)
    q[0, 1, 17] = wrong
    source, masking = QueryKeyScores(q, k), Masking(is_causal=causal)
    rows = compiled_rows(source, masking)
    finite = rows.sums.isfinite() & rows.squares.isfinite()
    assert (~finite).nonzero().tolist() == [[0, 1, 17]]
    ours, (largest, broken) = statistics(source, masking, "1", monkeypatch)
    theirs, (their_largest, their_broken) = statistics(source, masking, "0", monkeypatch)
    assert ours.broken
    assert theirs.broken
    assert broken == their_broken
    torch.testing.assert_close(largest, their_largest)
    assert ours.rows.tolist() == theirs.rows.tolist()
    for name, column in theirs.columns().items():
        torch.testing.assert_close(ours.columns()[name], column, equal_nan=True, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("gap", [5.0, 16.0, 40.0, 85.0, 95.0, 200.0, 5000.0])
def test_beside_a_sink_the_other_keys_keep_their_entropy(gap):
    others = torch.linspace(-1.0, 1.0, 12)
    k = torch.cat([torch.tensor([gap]), others]).view(1, 1, 13, 1)
    rows = compiled_rows(QueryKeyScores(torch.ones(1, 1, 1, 1), k, 1.0), Masking())
    assert rows.entropy_no_first.item() == pytest.approx(entropy(softmax(others.double().numpy())), rel=1e-5)
    assert rows.first.item() == pytest.approx(softmax(k.double().flatten().numpy())[0], rel=1e-6)


def test_uniform_rows_of_a_hundred_thousand_keys_have_entropy_log_k():
    rows = compiled_rows(QueryKeyScores(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 100_000, 1)), Masking())
    assert rows.entropy.tolist() == [[pytest.approx([math.log(100_000)] * 2, rel=1e-6)]]
    assert rows.sums.tolist() == [[[100_000.0, 100_000.0]]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_read_in_float32(dtype):
    q, k = torch.randn(2, 1, 2, 30, 4).to(dtype)
    ours = compiled_rows(QueryKeyScores(q, k), Masking())
    theirs = compiled_rows(QueryKeyScores(q.float(), k.float()), Masking())
    assert torch.equal(ours.entropy, theirs.entropy)


def test_what_it_does_not_serve_is_left_to_torch(monkeypatch):
    q, k = torch.randn(2, 1, 2, 6, 4)
    plain = QueryKeyScores(q, k)
    holes = torch.ones(6, 6, dtype=torch.bool)
    holes[3, 2] = False
    assert compiled_rows(plain, Masking(visible=holes)) is None
    assert compiled_rows(plain, Masking(bias=torch.randn(6, 6))) is None
    assert compiled_rows(CappedScores(plain, 5.0), Masking()) is None
    monkeypatch.setattr(row_statistics, "WORTH", 2 * 6 * 6 + 1)
    assert compiled_rows(plain, Masking()) is None
    assert compiled_largest(plain, Masking()) is None


def test_a_mask_that_is_added_and_only_hides_is_served():
    added = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), torch.finfo(torch.float32).min)
    q, k = torch.randn(2, 1, 2, 6, 4)
    ours = compiled_rows(QueryKeyScores(q, k), Masking.of(added, False, None))
    causal = compiled_rows(QueryKeyScores(q, k), Masking(is_causal=True))
    assert torch.equal(ours.entropy, causal.entropy)


def test_a_diagnosis_runs_through_it():
    with uc.Observer() as observer:
        observer.attention(1, torch.zeros(1, 2, 8, 4), torch.zeros(1, 2, 8, 4))
    assert observer.diagnosis.heads["entropy_mean"].tolist() == pytest.approx([math.log(8)] * 2)
