"""The demo's sentences follow the numbers, whichever way these fall."""

from dataclasses import replace

import pandas as pd
import pytest

from uncollapse.training.demo.depth import BOTH, HIDDEN_ONLY, SKIP_ONLY
from uncollapse.training.demo.findings import Outcome, attention, five_findings, learning, locater, tokens

PLAIN = Outcome("self-attention", 200, 2.5, (0.94, 0.5), (0.999, 0.8), (0.0, 3.0), (0.01, 9.0))
HELD = Outcome("LocAteR", 200, 2.6, (0.94, 0.4), (0.999, 0.9), (0.0, 0.9), (0.01, 0.5))


def depth_table(skip: float, hidden: float) -> pd.DataFrame:
    rows = [(name, n, r) for name, r in ((SKIP_ONLY, skip), (HIDDEN_ONLY, hidden), (BOTH, 0.5)) for n in (1, 12)]
    return pd.DataFrame(rows, columns=["attention", "depth", "mean"])


def test_there_are_five_and_each_has_a_subject_of_its_own():
    found = five_findings(depth_table(0.05, 1e-16), [PLAIN, HELD])
    assert len(found) == 5
    assert len({sentence.partition(":")[0] for sentence in found}) == 5
    assert all(sentence.endswith(".") for sentence in found)


@pytest.mark.parametrize(("skip", "hidden", "winner"), [(0.05, 1e-9, "skip α"), (1e-9, 0.05, "hidden state α′")])
def test_the_knob_that_leaves_more_is_named(skip, hidden, winner):
    assert f"the {winner} is what keeps tokens apart" in five_findings(depth_table(skip, hidden), [PLAIN, HELD])[0]


def test_the_lowest_is_named_and_one_seed_is_called_that():
    assert "lowest with self-attention, highest with LocAteR, 0.100 above the lowest" in learning([PLAIN, HELD])
    assert "lowest with LocAteR, highest with self-attention" in learning([PLAIN, replace(HELD, bits=2.0)])
    assert "one seed each, so no spread is known" in learning([PLAIN, HELD])


def test_numbers_that_lie_close_have_no_winner():
    said = learning([PLAIN, replace(HELD, bits=2.501)])
    assert "all within 0.001" in said
    assert "which may be chance" in said
    assert "lowest" not in said
    third = replace(HELD, name="third", bits=2.505)
    assert "self-attention and third within 0.005 of each other, highest with LocAteR" in learning([PLAIN, HELD, third])


def test_a_run_that_did_not_finish_is_told_and_not_ranked():
    lost = replace(HELD, bits=None, state="diverged at step 20 of 200")
    assert "LocAteR diverged at step 20 of 200." in learning([PLAIN, lost])
    assert "LocAteR 2" not in learning([PLAIN, lost])
    assert "not known" in locater([PLAIN, lost])
    assert "no run has held-out numbers" in learning([lost])


@pytest.mark.parametrize(("say", "kind"), [(tokens, "rank collapse"), (attention, "entropy collapse")])
def test_a_collapse_is_told_of_those_who_have_it(say, kind):
    assert f"no {kind} in any of them" in say([PLAIN, HELD])
    assert f"{kind} in LocAteR." in say([PLAIN, replace(HELD, collapses=(kind,))])


def test_before_and_after_stand_side_by_side():
    assert "self-attention 0.940 → 0.500, LocAteR 0.940 → 0.400" in tokens([PLAIN, HELD])
    assert "LocAteR not measured" in tokens([PLAIN, replace(HELD, residual=None)])
    assert "→ 3.3e-16" in tokens([replace(PLAIN, residual=(0.9, 3.3e-16)), HELD])


def test_the_penalty_is_judged_by_what_it_did():
    assert "nearer to 1 than self-attention's 3" in locater([PLAIN, HELD])
    assert "below its 9; bits per byte 0.100 higher (one seed)" in locater([PLAIN, HELD])
    other = replace(HELD, trace=(0.0, 8.0), scale=(0.01, 10.0), bits=2.4)
    assert "no nearer to 1" in locater([PLAIN, other])
    assert "not below its 9; bits per byte 0.100 lower" in locater([PLAIN, other])
    assert "equal to three decimals" in locater([PLAIN, replace(HELD, bits=2.5)])
    assert "cannot be judged" in locater([PLAIN, replace(HELD, trace=None)])
