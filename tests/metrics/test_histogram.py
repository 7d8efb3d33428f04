"""The histogram: exact sums, edges that lose nothing, medians within a bin."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.metrics import Histogram


def filled(values, low=-1.0, high=1.0, bins=400):
    histogram = Histogram.empty(low, high, bins)
    for part in values:
        histogram.add(torch.as_tensor(part))
    return histogram


@settings(deadline=None, max_examples=50)
@given(values=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=60))
def test_mean_is_exact_and_median_is_within_a_bin(values):
    histogram = filled([values])
    ordered = np.sort(np.array(values, dtype=np.float64))
    assert histogram.total == len(values)
    assert histogram.mean == pytest.approx(ordered.mean(), abs=1e-12)
    low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    assert low - histogram.width * 1.01 <= histogram.median <= high + histogram.width * 1.01


@settings(deadline=None, max_examples=25)
@given(values=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=40), cut=st.integers(1, 39))
def test_adding_in_parts_is_adding_at_once(values, cut):
    whole, parts = filled([values]), filled([values[:cut], values[cut:]])
    assert torch.equal(whole.counts, parts.counts)
    assert whole.mean == pytest.approx(parts.mean, abs=1e-12)


def test_both_ends_and_values_outside_fall_into_the_end_bins():
    histogram = filled([[-1.0, 1.0, -1.0000001, 1.0000001]])
    assert (int(histogram.counts[0]), int(histogram.counts[-1])) == (2, 2)


def test_nan_is_left_out_of_counts_and_mean():
    histogram = filled([[float("nan"), 0.5]])
    assert (histogram.total, histogram.mean) == (1, 0.5)


def test_nothing_counted_is_nan_not_zero():
    histogram = filled([[]])
    assert histogram.total == 0
    assert all(np.isnan(value) for value in (histogram.mean, histogram.median, histogram.mode))


def test_mode_is_the_middle_of_the_fullest_bin():
    assert filled([[0.1, 0.3, 0.31, 0.9]], 0.0, 1.0, 4).mode == 0.375


def test_counts_beyond_the_integers_of_float32():
    values = torch.zeros((1 << 24) + 3)
    assert filled([values], bins=2).total == len(values)
