"""The figures that the backends are held to: measured by one command, into a folder with the date."""

from datetime import date

import pandas as pd
import pytest

from uncollapse.bench import bars
from uncollapse.bench.bars import BARS, Bar, bars_table
from uncollapse.bench.estimate import memory
from uncollapse.bench.implementations import IMPLEMENTATIONS
from uncollapse.bench.measurement import TRAINING
from uncollapse.bench.stack_shape import StackShape
from uncollapse.cli import main


def test_every_bar_names_an_implementation_and_is_nearer_than_its_aim():
    assert {bar.name for bar in BARS} <= {implementation.name for implementation in IMPLEMENTATIONS}
    assert all(0 < bar.aim < bar.bar for bar in BARS)


def test_the_command_measures_each_bar_and_says_whether_it_is_reached(tmp_path, monkeypatch, capsys):
    few = (Bar("reversible", 64, "time", 1e9, 0.1), Bar("stacked, window 4", 64, "memory", 1e-9, 1e-10))
    monkeypatch.setattr(bars, "BARS", few)
    assert main(["bench", "--bars", "--quick", "--out", str(tmp_path / "run")]) == 0
    folder = tmp_path / f"run-{date.today().isoformat()}"
    table = pd.read_csv(folder / "bars.csv")
    assert table["figure"].tolist() == [bar.figure for bar in few]
    assert table.iloc[0, -1] in ("reached", "noisy")  # a busy machine decides
    assert len(pd.read_csv(folder / "bench.csv")) == 1 + len(few)  # SDPA against itself too
    assert "forward + backward / SDPA" in capsys.readouterr().out


def cell_of(name, length, ratio, **more):
    shape = StackShape(length=length).name
    causal = {"length": length, "causal": True, "shape": shape, "work": TRAINING}
    return {"group": "attention", "name": name, "against": "SDPA", "ratio": ratio, "peak_mb": 1.0, **causal, **more}


@pytest.mark.parametrize(("itself", "word"), [(1.04, "reached"), (0.96, "reached"), (1.06, "noisy"), (0.9, "noisy")])
def test_a_time_on_a_busy_machine_reaches_and_misses_nothing(itself, word):
    table = bars_table(pd.DataFrame([cell_of("SDPA", 1024, itself), cell_of("reversible", 1024, 0.8)]))
    assert table[""].tolist() == [word]


@pytest.mark.parametrize(("peak", "word"), [(0.2, "reached"), (0.3, "missed"), (None, "not measured")])
def test_memory_is_compared_with_what_carried_would_add(peak, word):
    whole = memory("carried, C++", StackShape(length=8192), training=True)
    cell = cell_of("reversible", 8192, 1.0, peak_mb=None if peak is None else peak * whole / 1e6)
    table = bars_table(pd.DataFrame([cell]))
    assert table[""].tolist() == [word]
    assert whole == pytest.approx(20.7e9, rel=0.01)
