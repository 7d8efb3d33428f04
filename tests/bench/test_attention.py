"""How often a pass is run: several rounds, or once if it is long."""

from dataclasses import replace

import pytest

from uncollapse.bench.attention import LONG, measure_attention
from uncollapse.bench.implementations import SDPA
from uncollapse.bench.stack_shape import StackShape

SHAPE = StackShape(length=8, layers=1, heads=1, size=8)


@pytest.mark.parametrize(("seconds", "rounds", "runs"), [(LONG / 2, 3, 4), (2 * LONG, 1, 1)])
def test_a_long_pass_is_timed_on_its_first_run_alone(seconds, rounds, runs, clock):
    calls, wait = [], clock.takes(seconds)
    clock.tick = 1.0  # what SDPA itself takes

    def slow_stack(layers, causal):
        calls.append(layers)
        wait()
        yield from SDPA.stack(layers, causal)

    slow = replace(SDPA, name="plain attention", stack=slow_stack)
    measured = next(measure_attention([SHAPE], rounds=3, budget=1e9, limit=1e9, implementations=[slow]))
    assert (measured.rounds, measured.seconds, measured.against_seconds, measured.ratio) == (
        rounds,
        seconds,
        1,
        seconds,
    )
    assert len(calls) == runs
