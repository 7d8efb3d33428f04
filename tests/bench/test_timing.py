"""Races alternate, take the best, and stop in time."""

import pytest

from uncollapse.bench.timing import Timings, time_alternately


def test_rounds_alternate_and_so_does_who_begins():
    order = []
    result = time_alternately(lambda: order.append("run"), lambda: order.append("against"), rounds=3)
    assert order == ["against", "run", "run", "against", "against", "run"]
    assert len(result.seconds) == len(result.against) == 3


def test_the_ratio_is_best_over_best_and_its_companion_the_median():
    result = Timings(seconds=(2.0, 3.0, 9.0), against=(1.0, 4.0, 3.0))
    assert result.ratio == 2.0
    assert result.median_ratio == 2.0
    assert Timings(seconds=(1.0, 8.0), against=(1.0, 2.0)).median_ratio == 2.5


def test_a_longer_run_has_a_larger_ratio(clock):
    result = time_alternately(clock.takes(0.75), clock.takes(0.25), rounds=3)
    assert result.ratio == result.median_ratio == 3.0


def test_no_round_starts_after_the_budget_but_one_is_always_run(clock):
    assert len(time_alternately(clock.takes(2.0), clock.takes(0.0), rounds=50, budget=1.0).seconds) == 1
    assert len(time_alternately(clock.takes(2.0), clock.takes(0.0), rounds=50, budget=5.0).seconds) == 3


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        time_alternately(lambda: None, lambda: None, rounds=0)
