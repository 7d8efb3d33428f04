"""Remedies over learning rates: the runs, the measure, and what is said about it."""

import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest

from uncollapse.cli import main
from uncollapse.remedies.contents import BY_NAME
from uncollapse.remedies.contents import read as read_remedy
from uncollapse_studies.remedies.plan import METHODS, PLAIN, RATES, SEEDS, TEXTS, made, plan
from uncollapse_studies.remedies.rates import COLUMNS, GUESS, best_pairs, compared, run_table, sentences, summary
from uncollapse_studies.remedies.study import ID, evidence, runs, sensitivities
from uncollapse_studies.short_runs.network import TINY
from uncollapse_studies.short_runs.store import RunStore
from uncollapse_studies.study import STUDIES, missing
from uncollapse_studies.what_helps import EVIDENCE, PAGE, evidence_lines, page_text

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "studies/results"
DATA = pytest.mark.skipif(
    not (Path(os.environ.get("UNCOLLAPSE_DATA", "/nowhere")) / "tinyshakespeare").is_dir(),
    reason="needs tinyshakespeare in $UNCOLLAPSE_DATA",
)
STEEP = [2.0, 2.0, 2.1, 2.2, 2.3, 2.5, 2.7]
FLAT = [2.0, 2.0, 2.0, 2.05, 2.05, 2.1, 2.2]


def table(losses, seeds=3):
    """A table of runs: the loss of each method at each rate, with a spread of 0.01 over seeds."""
    rows = [
        ("text", name, seed, rate, loss + 0.01 * seed, 10.0, 0.5)
        for name, values in losses.items()
        for seed in range(seeds)
        for rate, loss in zip(RATES, values, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def record(run, loss, finished=True):
    about = {"text": run.text, "method": run.method, "rate": run.rate, "seed": run.seed}
    return about | {"finished": finished, "held_out": [3.0, loss], "largest_logit": 9.0, "lowest_entropy": 0.5}


def test_every_remedy_is_a_method_and_can_be_read():
    assert set(METHODS) == {PLAIN, *BY_NAME}
    for name, remedy in METHODS.items():
        assert [one for one, _ in read_remedy(remedy)] == [name] if remedy else name == PLAIN


def test_a_pair_has_the_settings_of_both():
    (run,) = plan(["qk_norm + soft_cap"], RATES[:1], TEXTS[:1], [0])
    assert run.remedy == "qk_norm + soft_cap(cap=50)"


def test_a_flat_line_is_less_sensitive():
    found = compared(table({PLAIN: STEEP, "qk_norm": FLAT}))
    assert found[PLAIN].sensitivity.mean == pytest.approx(sum(STEEP) / 7 - 2.0)
    assert found["qk_norm"].against.verdict == "lower"
    assert found["qk_norm"].loss_against.verdict == "undecided"
    assert summary(found)["method"].tolist() == ["qk_norm", PLAIN]
    assert sentences(found, "here")[0].startswith("here: qk_norm (0.06) make the rate matter less.")


def test_a_missing_rate_is_no_finding():
    partly = table({PLAIN: STEEP, "sink": FLAT})
    partly = partly[(partly["label"] == PLAIN) | (partly["rate"] < 1.0)]
    assert set(compared(partly)) == {PLAIN}


def test_pairs_are_of_remedies_that_go_together_and_help():
    made_up = {PLAIN: STEEP, "qk_norm": FLAT, "qk_clip": [loss + 0.001 for loss in FLAT], "sink": [*STEEP[:6], 3.0]}
    assert best_pairs(compared(table(made_up))) == []  # qk_norm does not go with qk_clip, and a sink does not help


def test_a_run_that_diverged_or_ended_above_a_guess_counts_as_a_guess():
    low, high, diverged = plan([PLAIN], RATES[:3], TEXTS[:1], [0])
    found = run_table([record(low, 2.0), record(high, 9.0), record(diverged, None, finished=False)])
    assert found["loss"].tolist() == [2.0, GUESS, GUESS]
    assert found["largest_logit"].tolist() == [9.0, 9.0, math.inf]


def test_evidence_needs_several_seeds_and_names_what_is_worse(tmp_path):
    store = RunStore(tmp_path / ID)
    for run in plan([PLAIN, "sink"], seeds=range(3)):
        loss = (STEEP if run.method == PLAIN else [2.3] * 7)[RATES.index(run.rate)] + 0.001 * run.seed
        store.add(run.name, {"definition": ""} | record(run, loss))
    line = evidence(tmp_path)["sink"]
    assert line.startswith("the learning rate matters less on tinyshakespeare and wikitext-2; sensitivity to it 0.00 ")
    assert "0.00 instead of 0.26 on tinyshakespeare (better), 0.00 instead of 0.26 on wikitext-2" in line
    assert sensitivities(tmp_path)["wikitext-2"] == {PLAIN: "0.26", "sink": "0.00 (better)"}
    assert "loss at its best rate 2.30 instead of 2.00 on tinyshakespeare (worse)" in line
    one = RunStore(tmp_path / "one" / ID)
    for run in plan([PLAIN, "sink"], seeds=range(1)):
        one.add(run.name, {"definition": ""} | record(run, 2.0))
    assert evidence(tmp_path / "one") == {}


@DATA
@pytest.mark.parametrize("name", [PLAIN, "qk_rate", "qk_norm + sink"])
def test_a_run_trains_with_its_remedies(name):
    (run,) = plan([name], [1e-2], TEXTS[:1], [0])
    found = made(run, TINY)
    assert found["finished"]
    assert found["held_out"][-1] < found["held_out"][0]
    assert 0.0 < found["lowest_entropy"] <= 1.0


@DATA
def test_a_repeated_run_is_the_same(tmp_path, capsys):
    run = runs(tmp_path, TINY)[0]
    assert run.make() | {"seconds": 0} == run.make() | {"seconds": 0}


# What is committed.


def test_the_committed_runs_are_of_the_plan():
    store = RunStore(STORED / ID)
    if not store.records:
        pytest.skip("no run of this study is kept")
    planned = STUDIES[ID].runs(STORED)
    assert set(store.records) <= {run.name for run in planned}
    assert len(planned) - len(missing(planned, store)) == len(store.records)
    assert len(planned) >= len(METHODS) * len(RATES) * len(TEXTS) * SEEDS


def test_the_command_draws_what_is_kept(tmp_path, capsys):
    if not STUDIES[ID].is_kept(STORED):
        pytest.skip("no run of this study is kept")
    assert main(["reproduce", ID, "--at-most", "0", "--out", str(tmp_path / "out")]) == 0
    assert "Without a remedy the sensitivity is" in capsys.readouterr().out


def test_a_name_that_no_run_has_is_refused(capsys):
    assert main(["reproduce", ID, "--only", "no such run", "--at-most", "0"]) == 2
    assert "has no run with 'no such run' in its name" in capsys.readouterr().err


def test_the_page_and_the_evidence_are_those_of_the_results():
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page_text(ROOT), "run: uncollapse reproduce results"
    assert json.loads((ROOT / EVIDENCE).read_text(encoding="utf-8")) == evidence_lines(ROOT)
