"""The memory measure sees what is there, and a run that does not fit is not started."""

import json

import pytest

from tests.processes import printed_alone
from uncollapse.bench.attention import measure_attention
from uncollapse.bench.estimate import memory
from uncollapse.bench.implementations import IMPLEMENTATIONS
from uncollapse.bench.memory import too_large
from uncollapse.bench.stack_shape import StackShape

MEGABYTE = 1 << 20
ALLOCATIONS = """
import json, torch
from uncollapse.bench.memory import peak_added

COUNT = (200 << 20) // 4
passing = peak_added(lambda: torch.ones(COUNT).sum())
held = torch.ones(COUNT)
print(json.dumps([passing, peak_added(lambda: held.sum())]))
"""


def test_memory_that_comes_and_goes_is_seen_and_what_was_there_before_is_not():
    passing, before = json.loads(printed_alone(ALLOCATIONS))
    if passing is None:
        pytest.skip("this system has no /proc/self/clear_refs")
    # The kernel counts resident pages of program files too, and may drop or fetch some meanwhile.
    assert 150 * MEGABYTE < passing < 250 * MEGABYTE
    assert before < 50 * MEGABYTE


# A process that may open no more files cannot reset the kernel's measure either.
NO_FILES = """
import resource
from uncollapse.bench.memory import peak_added

resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
print(peak_added(lambda: print("ran")))
"""


def test_a_run_where_memory_cannot_be_measured_still_runs():
    pytest.importorskip("resource", reason="this system has no limits of open files")
    assert printed_alone(NO_FILES).split() == ["ran", "None"]


def test_seventy_per_cent_of_free_memory_is_the_limit():
    assert too_large(7e9, free=10e9) is None
    assert too_large(7.1e9, free=10e9) == "not run: needs about 7.1 GB, and 70 % of the 10.0 GB free are 7.0 GB"


def test_a_cell_that_does_not_fit_is_left_out_and_says_so(free_memory):
    shape = StackShape(length=64, layers=2, heads=1, size=8)
    needed = {c.name: memory(c.name, shape, training=True) for c in IMPLEMENTATIONS}
    free_memory(1 + (needed["SDPA"] + 1) / 0.7)
    cells = {c.name: c for c in measure_attention([shape], 1, 1.0, 60.0) if c.work == "forward + backward"}
    assert cells["SDPA"].note == ""
    assert cells["SDPA"].ratio > 0
    assert cells["plain hopfield"].note.startswith("not run: needs about 0.0 GB, and 70 %")
    assert cells["plain hopfield"].seconds is None


def test_a_cell_that_would_take_too_long_is_left_out_and_says_so():
    shapes = [StackShape(length=n, layers=1, heads=1, size=8) for n in (8, 4096)]
    sdpa = IMPLEMENTATIONS[:1]
    measured = measure_attention(shapes, 1, 1.0, limit=1e-3, implementations=sdpa)
    first, second = (m for m in measured if m.work == "forward")
    assert first.note == ""
    assert "8 tokens took" in second.note
    assert "and the limit is 0.001 s" in second.note
