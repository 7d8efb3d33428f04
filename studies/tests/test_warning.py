"""Early warning: faults do what they say, leads and thresholds are counted right, and the page is that of the runs."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from uncollapse.cli import main
from uncollapse_studies import locations
from uncollapse_studies.short_runs.faults import (
    CAUSES,
    CORRUPT,
    FROZEN,
    ROUNDING,
    SCALE,
    PlantedFault,
    batch_of,
    before_update,
    planted,
)
from uncollapse_studies.short_runs.network import TINY, held_out_batch, small_llama, training_batches
from uncollapse_studies.short_runs.store import RunStore
from uncollapse_studies.short_runs.training import RunSettings, loss_of, train
from uncollapse_studies.study import STUDIES, missing
from uncollapse_studies.warning.causes import named_cause
from uncollapse_studies.warning.findings import SHARES, Findings
from uncollapse_studies.warning.judging import TOGETHER, Usual, Watched, failing_update, threshold_for, watched_runs
from uncollapse_studies.warning.plan import CHOOSE, HEALTHY, PAIRS, REPORT, plan
from uncollapse_studies.warning.study import ID

STORED = locations.results()
DATA = pytest.mark.skipif(
    not (Path(os.environ.get("UNCOLLAPSE_DATA", "/nowhere")) / "tinyshakespeare").is_dir(),
    reason="needs tinyshakespeare in $UNCOLLAPSE_DATA",
)


def watched(cause=HEALTHY, half=CHOOSE, onset=1, failed=None, **scores):
    """A run with made-up scores, measured at updates 5, 10, ..."""
    arrays = {name: np.array(values, dtype=float) for name, values in scores.items()}
    steps = 5 * np.arange(1, 1 + max(map(len, arrays.values()), default=0))
    return Watched(f"000 {cause}", cause, half, onset, steps, arrays, failed)


def test_there_are_at_least_200_runs_and_both_halves_have_every_cause():
    runs = plan()
    assert len(runs) == 2 * PAIRS >= 200
    for half in (CHOOSE, REPORT):
        causes = [run.cause for run in runs if run.half == half]
        assert causes.count(HEALTHY) == len(causes) / 2
        assert len({causes.count(cause) for cause in CAUSES}) == 1
    for healthy, failing in zip(runs[::2], runs[1::2], strict=True):
        assert healthy.run.seed == failing.run.seed
        assert (healthy.run.rate, healthy.run.warmup, healthy.run.fault) == (failing.run.rate, failing.run.warmup, None)


@DATA
@pytest.mark.parametrize("cause", [SCALE, ROUNDING, FROZEN])
def test_a_fault_acts_from_its_onset_on_and_leaves_with_the_run(cause):
    model, ids = small_llama(TINY, 0), held_out_batch(TINY)
    for layer in model.model.layers:  # scores that differ, or nothing is left to round
        layer.self_attn.q_proj.weight.data *= 50
    stock, function = loss_of(model, ids), ALL_ATTENTION_FUNCTIONS["sdpa"]
    fault, losses = PlantedFault(cause, 3, {SCALE: 0.1, ROUNDING: 4096.0}.get(cause, 0.0)), []
    with planted(model, fault):
        for update in (1, 2, 3):
            before_update(model, fault, update)
            losses.append(loss_of(model, ids))
    assert losses[:2] == [stock, stock]
    assert losses[2] != stock
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is function
    if cause != SCALE:  # a scale that has grown stays
        assert loss_of(model, ids) == stock


def test_corrupt_batches_are_noise_for_as_long_as_the_fault_says():
    ids = torch.zeros(2, 8, dtype=torch.long)
    fault = PlantedFault(CORRUPT, 3, 2.0)
    assert [bool(batch_of(ids, fault, update, 0).any()) for update in (2, 3, 4, 5)] == [False, True, True, False]


@DATA
def test_a_run_is_its_healthy_twin_up_to_the_onset_and_can_be_repeated():
    healthy, failing = (
        train(RunSettings(1, 3e-3, 4, fault), TINY, watched=False) for fault in (None, PlantedFault(SCALE, 20, 1.0))
    )
    assert healthy.losses[:19] == failing.losses[:19]
    assert healthy.losses[20:] != failing.losses[20:]
    again = train(RunSettings(1, 3e-3, 4), TINY, watched=True)  # the watch changes nothing
    assert again.losses == healthy.losses
    assert again.held_out == healthy.held_out
    assert not torch.equal(training_batches(TINY, 1), training_batches(TINY, 2))


def test_a_run_fails_where_its_loss_stays_above_the_twins():
    twin = {"steps": [5, 10, 15, 20, 25], "held_out": [2.0] * 5}
    assert failing_update(twin, twin) is None
    assert failing_update(twin | {"held_out": [2.3, 2.0, 2.3, 2.3, 2.3]}, twin) == 15
    assert failing_update(twin | {"held_out": [2.0, 2.0, 2.0, 2.3, 2.3]}, twin) is None  # two are not three
    assert failing_update(twin | {"held_out": [2.0, 2.0, None]}, twin) == 15


def test_a_lead_counts_from_the_first_alarm_and_only_between_onset_and_failure():
    run = watched(SCALE, REPORT, onset=8, failed=25, score=[0, 2, 0, 3, 9])
    assert run.lead(run.first_alarm("score", 1.0)) == 15
    assert run.lead(run.first_alarm("score", 2.5)) == 5
    assert run.lead(run.first_alarm("score", 10.0)) == 0
    early = watched(SCALE, REPORT, onset=12, failed=25, score=[0, 2, 0, 3, 9])
    assert early.lead(early.first_alarm("score", 1.0)) == 0  # an alarm before anything is wrong


def test_a_threshold_lets_through_the_share_of_healthy_runs_that_is_asked_for():
    runs = [watched(score=[0, top]) for top in range(100)]
    for share in (0.05, 0.01):
        threshold = threshold_for(runs, "score", share)
        assert sum(run.first_alarm("score", threshold) is not None for run in runs) == round(100 * share)
    assert threshold_for(runs[:50], "score", 0.01) == 49


@pytest.mark.parametrize(
    ("raised", "cause"),
    [
        ({"common offset": 9.0, "logit bound": 9.0}, ROUNDING),
        ({"logit bound": 9.0}, SCALE),
        ({"update size": 9.0, "update growth": 1.0}, "rate too high"),
        ({"update size": 9.0, "update growth": -1.0}, "no warm-up"),
        ({"loss spike": 9.0, "gradient norm spike": 5.0}, CORRUPT),
        ({"gradient norm rise": 9.0}, FROZEN),
    ],
)
def test_the_number_furthest_from_the_usual_names_the_cause(raised, cause):
    names = ["logit bound", "update size", "loss spike", "gradient norm spike", "gradient norm rise"]
    usual = Usual(dict.fromkeys(names, 0.0), dict.fromkeys(names, 1.0))
    scores = {
        name: [0.0, raised.get(name, 0.0), raised.get(name, 0.0)] for name in [*names, "update growth", "common offset"]
    }
    run = watched(cause, REPORT, **scores, **{TOGETHER: [0.0, 9.0, 9.0]})
    assert named_cause(run, usual, 3.0) == cause
    assert named_cause(run, usual, 10.0) == "no alarm"


@DATA
def test_a_run_that_is_kept_is_not_made_again(tmp_path, capsys):
    study, store = STUDIES[ID], RunStore(tmp_path / "results" / ID)
    runs = study.runs(tmp_path / "results", TINY)[:2]
    for run in runs:
        store.add(run.name, {"definition": run.definition} | run.make())
    again = RunStore(tmp_path / "results" / ID)
    assert missing(runs, again) == []
    assert set(again.records) == {"000 healthy", "000 rate too high"}
    assert set(again.records["000 healthy"]["scores"]) > {"forecast", "gradient norm spike", "update size"}


# What is committed.


def test_the_committed_runs_are_the_first_of_the_plan_in_pairs():
    store, runs = RunStore(STORED / ID), STUDIES[ID].runs(STORED)
    made = len(runs) - len(missing(runs, store))
    assert made == len(store.records) > 0
    assert missing(runs[:made], store) == []
    assert made % 2 == 0


def test_thresholds_come_from_one_half_and_the_other_is_reported():
    found = Findings(watched_runs(RunStore(STORED / ID)))
    chosen = [run for run in found.runs if run.half == CHOOSE and run.healthy]
    for share in SHARES:
        for name, own in found.by_score[share].items():
            alarms = sum(run.first_alarm(name, own.threshold) is not None for run in chosen)
            assert alarms <= share * len(chosen), name
    reported = {run.name for run in found.runs if run.half == REPORT and run.failed is not None}
    assert {len(own.leads) for own in found.by_score[SHARES[0]].values()} == {len(reported)}
    assert found.confusion["runs"].sum() == len(reported)


def test_the_command_draws_what_is_kept(tmp_path, capsys):
    assert main(["reproduce", "warning", "--at-most", "0", "--out", str(tmp_path / "out")]) == 0
    assert "At 5 % false alarms" in capsys.readouterr().out
    assert (tmp_path / "out" / "warning.csv").is_file()
