"""How often a pass is run: several rounds, or once if it is long."""

import pytest

from tests.bench.clock import Clock
from uncollapse.bench.attention import LONG, attention_cells
from uncollapse.bench.contestants import CANDIDATES
from uncollapse.bench.shapes import StackShape

SHAPE = StackShape(length=8, layers=1, heads=1, size=8)


@pytest.mark.parametrize(("seconds", "rounds", "runs"), [(LONG / 2, 3, 4), (2 * LONG, 1, 1)])
def test_a_long_pass_is_timed_on_its_first_run_alone(seconds, rounds, runs, monkeypatch):
    clock, calls = Clock(monkeypatch), []

    def run_of(contestant, layers, causal, training):
        calls.append(contestant.name)
        return lambda: (calls.append(contestant.name), clock.takes(seconds if contestant is other else 1.0)())

    other = CANDIDATES[1]
    monkeypatch.setattr("uncollapse.bench.attention.run_of", run_of)
    cells = attention_cells([SHAPE], rounds=3, budget=1e9, limit=1e9, contestants=[other])
    cell = next(cells)
    assert (cell.rounds, cell.seconds, cell.against_seconds, cell.ratio) == (rounds, seconds, 1.0, seconds)
    assert calls.count(other.name) == 1 + runs  # made, then run
