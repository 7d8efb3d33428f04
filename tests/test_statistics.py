"""Is a difference real? The rule against scipy, closed forms, properties and simulations."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_ind

from uncollapse.statistics import CONFIDENCE, Estimate, difference, differences, holm, summarise

VALUES = st.lists(st.floats(1, 100), min_size=2, max_size=6)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)
OPPOSITE = {"higher": "lower", "lower": "higher", "undecided": "undecided"}


def spread_out(*samples):
    """Leave out samples whose spread is rounding: there, rounding decides."""
    assume(all(np.std(sample) > 1e-3 for sample in samples))


def compared(base, other, confidence=CONFIDENCE):
    return difference(summarise(base), summarise(other), confidence)


@given(VALUES, VALUES, st.sampled_from([0.8, 0.95, 0.99]))
def test_a_difference_is_that_of_welchs_test(base, other, confidence):
    spread_out(base, other)
    found, expected = compared(base, other, confidence), ttest_ind(other, base, equal_var=False)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(confidence)), rel=1e-6, abs=1e-9)
    if abs(found.p_value - (1 - confidence)) > 1e-6:
        assert (found.verdict != "undecided") == (found.p_value < 1 - confidence)


@given(VALUES, st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_of_a_mean_is_students(values, confidence):
    spread_out(values)
    found, expected = summarise(values).estimate(confidence), ttest_1samp(values, 0.0).confidence_interval(confidence)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-6, abs=1e-9)


@given(VALUES, VALUES)
def test_exchanging_the_sides_turns_the_difference_round(base, other):
    there, back = compared(base, other), compared(other, base)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
    assert there.verdict == OPPOSITE[back.verdict]


@given(VALUES, VALUES, st.floats(-1e3, 1e3), st.floats(0.01, 100))
def test_a_shift_and_a_change_of_unit_do_not_change_the_verdict(base, other, shift, factor):
    spread_out(base, other)
    found = compared(base, other)
    changed = compared(*([shift + factor * value for value in side] for side in (base, other)))
    # relative to the values, which a shift by 1,000 leaves ten of sixteen digits at least
    assert changed.low == pytest.approx(factor * found.low, rel=1e-6, abs=1e-8)
    assert changed.high == pytest.approx(factor * found.high, rel=1e-6, abs=1e-8)
    assert changed.p_value == pytest.approx(found.p_value, rel=1e-5, abs=1e-12)


def test_two_seeds_have_a_closed_form():
    """With one degree of freedom Student's distribution is Cauchy's, whose quantile is a tangent."""
    found = summarise([1.0, 3.0]).estimate()
    assert found.value == 2.0
    assert found.detectable == pytest.approx(math.tan(math.pi * CONFIDENCE / 2))


@pytest.mark.parametrize(("base", "other"), [([50.0], [90.0]), ([50.0], [90.0, 91.0]), ([50.0, 50.1], [90.0])])
def test_one_seed_on_either_side_decides_nothing(base, other):
    found = compared(base, other)
    assert found.verdict == "undecided"
    assert found.detectable == math.inf
    assert not found.excludes(1e9)
    assert not found.excludes(-1e9)
    assert math.isnan(found.p_value)
    assert str(found).endswith("(one seed)")


def test_no_seed_is_an_error():
    with pytest.raises(ValueError, match="at least one seed, got none"):
        summarise([])


def test_seeds_that_all_agree_have_no_doubt():
    assert compared([0.1] * 3, [0.1] * 7).verdict == "undecided"  # sums of 0.1 round differently
    assert compared([0.1] * 3, [0.1] * 7).excludes(1e-300)
    assert compared([0.1] * 3, [0.2] * 3).verdict == "higher"
    assert compared([0.1] * 3, [0.2] * 3).p_value == 0.0


def test_spreads_whose_fourth_powers_underflow_still_count():
    found = compared([1e-90, 2e-90, 3e-90], [2e-90, 3e-90, 4e-90])
    assert found.p_value == pytest.approx(compared([1, 2, 3], [2, 3, 4]).p_value)


def test_a_null_result_excludes_what_it_can_detect_and_a_wide_interval_does_not():
    close, wide = compared([50.0, 50.1, 50.2], [50.0, 50.1, 50.3]), compared([40.0, 50.0, 60.0], [41.0, 50.0, 62.0])
    assert close.verdict == wide.verdict == "undecided"
    assert close.excludes(2.0)
    assert close.excludes(-2.0)
    assert not wide.excludes(2.0)
    assert not wide.excludes(-2.0)


def rejected(p_values):
    """Holm's test as he wrote it: step down from the smallest, stop at the first that is not small enough."""
    found = [False] * len(p_values)
    for step, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] >= (1 - CONFIDENCE) / (len(p_values) - step):
            break
        found[index] = True
    return found


@given(P_VALUES)
def test_an_interval_excludes_zero_exactly_where_holm_rejects(p_values):
    assert [p < 1 - level for p, level in zip(p_values, holm(p_values), strict=True)] == rejected(p_values)


@given(P_VALUES, st.data())
def test_holm_rejects_no_more_than_without_correction_and_no_less_with_smaller_p_values(p_values, data):
    before = rejected(p_values)
    assert all(p < 1 - CONFIDENCE for p, now in zip(p_values, before, strict=True) if now)
    smaller = [p * data.draw(st.floats(0, 1)) for p in p_values]
    after = [p < 1 - level for p, level in zip(smaller, holm(smaller), strict=True)]
    assert all(now for now, was in zip(after, before, strict=True) if was)


@given(P_VALUES)
def test_a_further_comparison_narrows_no_interval(p_values):
    assert all(more >= less for more, less in zip(holm([*p_values, 1.0]), holm(p_values), strict=False))


def test_a_comparison_that_cannot_be_made_does_not_count():
    assert holm([0.04, math.nan]) == [CONFIDENCE, CONFIDENCE]
    assert holm([]) == []


@given(VALUES, st.lists(VALUES, min_size=1, max_size=4))
def test_methods_compared_with_one_base_have_wider_intervals_than_alone(base, others):
    spread_out(base, *others)
    summaries = dict(enumerate(map(summarise, others)))
    together = differences(summarise(base), summaries)
    assert list(together) == list(summaries)
    for key, found in together.items():
        alone = difference(summarise(base), summaries[key])
        assert found.value == alone.value
        assert found.detectable >= alone.detectable
        if found.verdict != "undecided":
            assert alone.verdict == found.verdict


def test_the_interval_holds_the_difference_in_95_of_100_cases():
    """Three seeds each with unequal spreads; Welch's test errs to the safe side by up to about 2 % here."""
    random = np.random.default_rng(0)
    count = 4000
    base, other = random.normal(0.0, 1.0, (count, 3)), random.normal(5.0, 2.0, (count, 3))
    found = [compared(*pair) for pair in zip(base, other, strict=True)]
    covered = np.mean([one.low < 5.0 < one.high for one in found])
    noise = 4 * math.sqrt(0.95 * 0.05 / count)  # four standard errors
    assert 0.95 - noise < covered < 0.97 + noise


def test_four_methods_that_are_all_alike_are_seldom_told_apart():
    random = np.random.default_rng(0)
    count = 1500
    draws = random.normal(0.0, 1.0, (count, 5, 5))  # tries, base and four methods, seeds

    def any_found(draw):
        base, *others = map(summarise, draw)
        return any(found.verdict != "undecided" for found in differences(base, dict(enumerate(others))).values())

    wrong = np.mean([any_found(draw) for draw in draws])
    assert wrong < 0.05 + 4 * math.sqrt(0.95 * 0.05 / count)


def test_an_estimate_is_written_with_its_interval():
    assert str(Estimate(2.0, 0.0, math.inf, 3)) == "+2 (+2 to +2)"
    assert str(compared([50.0, 51.0, 52.0], [60.0, 61.0, 62.0])) == "+10 (+7.73 to +12.3)"
