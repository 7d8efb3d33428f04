"""Cosines of token pairs: every pair once, whatever the length or the scale of the tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.metrics import Cosines, cosine_mean, cosine_pairs, count_raw_and_centred, residual, unit_tokens

WIDTH = 2 / 400  # of a bin of the histogram


def tokens(count, width, seed, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.float64) + offset


def naive_cosines(x):
    x = x.double().numpy()
    pairs = [(i, j) for i in range(len(x)) for j in range(i + 1, len(x))]
    return np.array([x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j]) for i, j in pairs])


def pooled(*sequences):
    cosines = Cosines.empty()
    for x in sequences:
        cosines.add(x)
    return cosines


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(2, 24),
    width=st.integers(2, 9),
    seed=st.integers(0, 10_000),
    offset=st.sampled_from([0.0, 1.0, 10.0]),
)
def test_all_pairs_are_counted_once(count, width, seed, offset):
    x = tokens(count, width, seed, offset)
    wanted, cosines = naive_cosines(x), pooled(x.float())
    assert cosines.histogram.total == len(wanted)
    assert cosines.histogram.mean == pytest.approx(wanted.mean(), abs=1e-6)  # float32 products
    assert abs(cosines.histogram.median - np.median(wanted)) <= WIDTH + gap_at_the_median(wanted)
    certain = np.abs(wanted - 0.99) > 1e-6  # a pair that float32 cannot place may fall on either side
    assert abs(cosines.aligned - (wanted[certain] > 0.99).sum()) <= (~certain).sum()
    torch.testing.assert_close(cosine_pairs(x).numpy(), wanted, rtol=1e-12, atol=1e-12)
    assert cosine_mean(x).item() == pytest.approx(wanted.mean(), abs=1e-12)


def gap_at_the_median(values):
    """With an even number of values numpy takes the middle of the two in the middle; a histogram cannot."""
    middle = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]]
    return middle[1] - middle[0]


@pytest.mark.parametrize("count", [255, 256, 257, 600])
def test_a_sequence_longer_than_a_tile_loses_no_pair(count):
    x = tokens(count, 5, seed=count, offset=0.5)
    cosines, unit = pooled(x), unit_tokens(x)
    wanted = (unit @ unit.T)[tuple(torch.triu_indices(count, count, 1))]
    assert cosines.histogram.total == count * (count - 1) // 2
    assert cosines.histogram.mean == pytest.approx(wanted.mean().item(), abs=1e-7)
    counts = np.histogram(wanted.float().numpy(), bins=400, range=(-1, 1))[0]
    moved = np.abs(np.cumsum(counts) - np.cumsum(cosines.histogram.counts.numpy()))
    assert moved.max() <= 2  # a value on an edge, up to rounding, may fall on either side of it


def test_sequences_are_pooled_by_pair_not_averaged():
    alike, apart = torch.ones(10, 3), torch.eye(3)  # 45 pairs of cosine 1, 3 of cosine 0
    cosines = pooled(alike, apart)
    assert cosines.histogram.mean == pytest.approx(45 / 48)
    assert cosines.aligned_share == pytest.approx(45 / 48)


def test_orthonormal_tokens_have_cosine_zero_and_copies_one():
    assert cosine_mean(torch.eye(5)).item() == 0
    assert cosine_mean(torch.ones(4, 3)).item() == pytest.approx(1)
    opposite = pooled(torch.tensor([[1.0, 2.0], [-1.0, -2.0]])).histogram
    assert (opposite.total, int(opposite.counts[0])) == (1, 1)


def test_one_token_has_no_pair():
    cosines = pooled(torch.randn(1, 4))
    assert cosines.histogram.total == 0
    assert np.isnan(cosines.aligned_share)
    assert np.isnan(cosines.histogram.median)


@pytest.mark.parametrize("factor", [1e-30, 1e-22, 1e-10, 1e10, 1e25])
def test_the_scale_of_the_tokens_does_not_matter(factor):
    x = tokens(8, 6, seed=1, offset=1.0).float()
    torch.testing.assert_close(cosine_pairs(factor * x), cosine_pairs(x), rtol=1e-5, atol=1e-6)


def test_a_token_of_zeros_is_like_no_other():
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert cosine_pairs(x).tolist() == [0, 0, 1]


def test_centring_takes_a_common_offset_away():
    """Full-rank tokens with one large common coordinate: cosine 0.98 before, about zero after centring."""
    x = tokens(64, 48, seed=3).float()
    x[:, 0] += 7 * 48**0.5
    assert cosine_mean(x) > 0.97
    assert abs(cosine_mean(residual(x))) < 0.05


def test_a_token_that_is_not_a_number_is_left_out_not_counted_as_zero():
    x = torch.eye(3)
    x[2, 0] = float("nan")
    cosines = pooled(x)
    assert cosines.histogram.total == 1


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(2, 300),
    width=st.integers(2, 9),
    seed=st.integers(0, 10_000),
    offset=st.sampled_from([0.0, 0.1, 1.0, 10.0, 1e4]),
    scale=st.sampled_from([1e-30, 1.0, 1e25]),
    small=st.sampled_from([1.0, 0.1, 1e-4, 0.0]),
)
def test_one_product_gives_the_cosines_of_tokens_and_of_their_residual(count, width, seed, offset, scale, small):
    """Also where a token is far below the mean, for which two products are taken."""
    x = tokens(count, width, seed, offset)
    x[0] *= small
    x = (x * scale).float()
    raw, centred = Cosines.empty(), Cosines.empty()
    count_raw_and_centred(x, raw, centred)
    for found, wanted in ((raw, pooled(x)), (centred, pooled(residual(x)))):
        assert found.histogram.total == wanted.histogram.total == count * (count - 1) // 2
        assert found.histogram.mean == pytest.approx(wanted.histogram.mean, abs=5e-6)  # float32 sums of 5 parts
        moved = (found.histogram.counts - wanted.histogram.counts).cumsum(0).abs().max()
        assert moved <= 2 + count**2 / 1000  # a value on an edge, up to rounding, may fall on either side of it
