"""Rescue: treatments come when they should and do what they say, outcomes are counted right, the page is the runs'."""

import math
import os
from pathlib import Path

import pytest
import torch

from uncollapse.cli import main
from uncollapse_studies import locations
from uncollapse_studies.rescue.findings import ENOUGH, TREATMENTS, RescueFindings, evidence_of
from uncollapse_studies.rescue.judging import TreatedOutcome, changed_for_the_better, end_loss, outcomes, share_interval
from uncollapse_studies.rescue.plan import failing_pairs, treated_runs, trial_pairs
from uncollapse_studies.rescue.study import ID, findings
from uncollapse_studies.rescue.treatment import BRANCHES, CONTROL, LIMIT, NOTHING, Branch, giving, train_treated
from uncollapse_studies.short_runs.faults import FROZEN, RATE, ROUNDING, SCALE, PlantedFault
from uncollapse_studies.short_runs.network import TINY
from uncollapse_studies.short_runs.store import RunStore
from uncollapse_studies.short_runs.training import RunSettings, train
from uncollapse_studies.study import STUDIES, missing
from uncollapse_studies.warning.judging import PARTS
from uncollapse_studies.warning.plan import CHOOSE, REPORT, plan

STORED = locations.results()
DATA = pytest.mark.skipif(
    not (Path(os.environ.get("UNCOLLAPSE_DATA", "/nowhere")) / "tinyshakespeare").is_dir(),
    reason="needs tinyshakespeare in $UNCOLLAPSE_DATA",
)
STEPS = [6, 12, 18, 24, 30]


def outcome(against, *, run="006 rate too high", branch=NOTHING, half=REPORT, healthy=False, in_time=True, cause=RATE):
    """How a run ended, made up."""
    return TreatedOutcome(run, cause, half, branch, healthy, in_time, against)


def warning_store(folder, held_out, alarm_at):
    """Records of all pairs of one seed in each half; runs with a fault have these losses and an alarm there."""
    store = RunStore(folder)
    for one in plan([0, 6]):
        faulty = one.run.fault is not None
        scores = [5.0 if faulty and step == alarm_at else 0.0 for step in STEPS]
        store.add(
            one.name,
            {
                "definition": "",
                "cause": one.cause,
                "half": one.half,
                "onset": 1,
                "steps": STEPS,
                "held_out": held_out if faulty else [2.0] * len(STEPS),
                "scores": dict.fromkeys(PARTS, scores),
            },
        )
    return store


def test_a_pair_is_treated_at_the_first_alarm_of_the_run_that_fails(tmp_path):
    pairs = failing_pairs(warning_store(tmp_path, [2.0, 2.0, 2.5, 2.5, 2.5], alarm_at=12))
    assert [(pair.failing.name, pair.failed, pair.alarm) for pair in pairs] == [
        ("000 rate too high", 18, 12),
        ("006 rate too high", 18, 12),
    ]
    assert all(pair.in_time for pair in pairs)
    runs = treated_runs(pairs)
    assert len({run.name for run in runs}) == len(runs)
    assert {run.alarm for run in runs} == {12}
    branches = {
        name: [run.branch for run in runs if run.planned.name == name] for name in {one.name for one in plan([0, 6])}
    }
    assert branches == {
        "000 healthy": [BRANCHES[0]],  # of the half that limits are chosen on
        "000 rate too high": [],
        "006 healthy": [*BRANCHES, CONTROL],
        "006 rate too high": [*BRANCHES],
    }


@pytest.mark.parametrize(("alarm", "expected", "in_time"), [(24, 24, False), (None, None, False)])
def test_a_late_alarm_is_treated_and_none_is_not(tmp_path, alarm, expected, in_time):
    pairs = failing_pairs(warning_store(tmp_path, [2.0, 2.0, 2.5, 2.5, 2.5], alarm_at=alarm))
    assert [(pair.alarm, pair.in_time) for pair in pairs] == [(expected, in_time)] * 2
    assert bool(treated_runs(pairs)) == (alarm is not None)


def test_runs_that_do_not_fail_are_not_treated(tmp_path):
    assert failing_pairs(warning_store(tmp_path, [2.0] * 5, alarm_at=12)) == []
    with pytest.raises(ValueError, match="make them first: uncollapse reproduce runs warning"):
        STUDIES[ID].runs(tmp_path / "nowhere")


def test_a_run_is_rescued_within_two_percent_of_its_twin_and_harmed_beyond_one():
    assert [outcome(against).rescued for against in (0.9, 1.02, 1.021, math.inf)] == [True, True, False, False]
    assert [outcome(against).harmed for against in (0.9, 1.01, 1.011, math.inf)] == [False, False, True, True]


def test_the_loss_at_the_end_is_the_mean_of_the_last_three_and_infinite_without_an_end():
    assert end_loss([9.0, 2.0, 3.0, 4.0], 4) == 3.0
    assert end_loss([9.0, 2.0, 3.0, None], 4) == math.inf
    assert end_loss([9.0, 2.0, 3.0], 4) == math.inf
    assert end_loss([], 0) == math.inf


def test_outcomes_are_against_the_healthy_twin_that_goes_on_as_it_is(tmp_path):
    store = RunStore(tmp_path)
    about = {"twin": "006 healthy", "cause": RATE, "half": REPORT, "in_time": True}
    for name, branch, losses in (
        ("006 healthy", NOTHING, [2.0, 2.0]),
        ("006 healthy", "qk_clip", [2.1, 2.1]),
        ("006 rate too high", "half the rate", [3.0, 3.0]),
        ("006 rate too high", "qk_clip", [3.0]),  # it ended early
    ):
        own = {"run": name, "branch": branch, "healthy": name.endswith("healthy"), "held_out": losses}
        store.add(f"{name}, {branch}", about | own)
    found = {(one.run, one.branch): one.against for one in outcomes(store)}
    assert found == {
        ("006 healthy", NOTHING): 1.0,
        ("006 healthy", "qk_clip"): pytest.approx(1.05),
        ("006 rate too high", "half the rate"): 1.5,
        ("006 rate too high", "qk_clip"): math.inf,
    }


def test_a_run_without_a_warning_counts_as_not_rescued():
    found = RescueFindings([outcome(1.0), outcome(3.0, in_time=False)], {RATE: 2, SCALE: 1})
    own = found.of(NOTHING)
    assert (own.rescued, own.failing) == (1, 5)
    assert own.interval == share_interval(1, 5)
    assert own.median == 2.0
    assert found.of(NOTHING, SCALE).failing == 1
    table = found.by_cause().set_index(["branch", "cause"]).loc[(NOTHING, RATE)]
    assert (table["failing"], table["warned"], table["warned in time"], table["rescued"]) == (4, 2, 1, 1)
    assert found.table().iloc[0, 1] == "1 of 5"


def test_runs_count_in_the_half_that_is_treated_alone():
    mistaken = [outcome(against, branch="qk_clip", healthy=True) for against in (1.0, 1.02, 1.04)]
    others = [outcome(2.0, branch="qk_clip", healthy=healthy, half=CHOOSE) for healthy in (True, False)]
    own = RescueFindings([*mistaken, *others]).of("qk_clip")
    assert (own.harmed, len(own.mistaken), own.failing) == (2, 3, 0)
    assert own.change.value == pytest.approx(0.02)
    assert own.change.low < 0.02 < own.change.high


def test_a_treatment_is_better_beyond_doubt_only_with_enough_runs_and_for_the_better():
    def runs(branch, rescued, count=12):
        return [outcome(1.0 if place < rescued else 2.0, run=str(place), branch=branch) for place in range(count)]

    found = RescueFindings([*runs(NOTHING, 2), *runs("half the rate", 12), *runs("qk_clip", 4)])
    assert found.better == ["half the rate"]
    assert found.best() == "half the rate"
    assert "12 of 12 with half the rate, 2 with nothing" in " ".join(found.sentences())
    worse = RescueFindings([*runs(NOTHING, 12), *runs("half the rate", 0)])
    assert worse.better == []
    assert changed_for_the_better([True] * 12, [False] * 12) < 0.05  # doubtless, and for the worse


def test_a_remedy_has_evidence_only_from_enough_runs():
    runs = [outcome(1.0, run=str(place), branch="qk_clip") for place in range(ENOUGH)]
    assert set(evidence_of(RescueFindings(runs))) == {"qk_clip"}
    assert evidence_of(RescueFindings(runs[1:])) == {}


def test_evidence_is_of_all_ways_in_which_a_remedy_was_applied():
    ways = {"qk_norm": 1.0, "fitted qk_norm": 2.0}
    runs = [outcome(ways[name], run=str(place), branch=name) for place in range(ENOUGH) for name in ways]
    said = evidence_of(RescueFindings(runs))
    assert set(said) == {"qk_norm"}
    assert f"{ENOUGH} with qk_norm and 0 with qk_norm(fit=True) from the first warning" in said["qk_norm"]


@DATA
def test_nothing_is_the_run_itself_and_a_treatment_changes_it_only_after_the_alarm():
    run = RunSettings(1, 3e-3, 4, PlantedFault(RATE, 1, 10.0))
    stock = train(run, TINY, watched=False)
    for branch in BRANCHES:
        course = train_treated(run, TINY, branch, 12)
        assert course.losses[:12] == stock.losses[:12]
        assert (course.losses == stock.losses) == (branch.name in (NOTHING, "qk_clip")), branch.name  # logits are small
    clipped = train_treated(run, TINY, Branch("qk_clip", remedy="qk_clip(threshold=0.01)"), 12)
    assert clipped.losses[:13] == stock.losses[:13]  # weights are clipped after the first step that it sees
    assert clipped.losses[13:] != stock.losses[13:]


@DATA
def test_qk_clip_is_refused_where_an_attention_function_of_its_own_makes_the_scores():
    run = RunSettings(1, 3e-3, 4, PlantedFault(ROUNDING, 3, 1024.0))
    branch = next(branch for branch in BRANCHES if branch.name == "qk_clip")
    assert train_treated(run, TINY, branch, 12).losses == train(run, TINY, watched=False).losses
    with pytest.raises(ValueError, match="qk_clip would not act as asked"):
        train_treated(run, TINY, Branch("given all the same", remedy=branch.remedy), 12)


@DATA
def test_half_the_rate_is_half_the_rate_from_the_alarm_on():
    run = RunSettings(1, 3e-3, 4)
    course = train_treated(run, TINY, Branch("half", rate=0.5), 12)
    by_hand = train(
        run, TINY, watched=False, rates=lambda update: 3e-3 * min(1.0, update / 4) * (1 - (update > 12) / 2)
    )
    assert course.losses == by_hand.losses


@DATA
@pytest.mark.parametrize("cause", [None, SCALE, ROUNDING, FROZEN])
def test_qk_norm_starts_near_what_the_run_computes_and_its_gains_are_trained(cause):
    fault = None if cause is None else PlantedFault(cause, 3, {SCALE: 5.0, ROUNDING: 1024.0}.get(cause, 0.0))
    run, branch, gains = RunSettings(1, 3e-3, 4, fault), Branch("qk_norm", remedy="qk_norm(fit=True)"), []
    treat = giving(run, TINY, branch, 12)

    def before(update, model, optimizer):
        treat(update, model, optimizer)
        own = [parameter for name, parameter in model.named_parameters() if "uncollapse_qk_norm" in name]
        assert len(own) == (0 if update <= 12 else 2 * TINY.layers)
        assert model.update == update
        gains.append([parameter.detach().clone() for parameter in own])

    course, stock = train(run, TINY, watched=False, before=before), train(run, TINY, watched=False)
    for start, end in zip(gains[12], gains[-1], strict=True):
        assert not torch.equal(start, torch.ones_like(start))  # fitted, not left at 1
        assert not torch.equal(start, end)
    assert course.losses[:12] == stock.losses[:12]
    assert course.losses[12] == pytest.approx(stock.losses[12], rel=0.01)  # attention of a tiny run is nearly even
    assert course.losses[13:] != stock.losses[13:]


@DATA
def test_a_trial_makes_every_branch_and_draws_it(tmp_path, capsys):
    assert main(["reproduce", "runs", ID, "--quick", "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    planned = treated_runs(trial_pairs(TINY))
    assert f"{len(planned)} of {len(planned)}: " in captured.err
    assert "runs that fail" in captured.out
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".csv", ".html", ".json"}


# What is committed.


def test_the_committed_warnings_say_when_every_run_is_treated():
    pairs = failing_pairs(RunStore(STORED / "warning"))
    warned = [pair for pair in pairs if pair.alarm is not None]
    assert len(pairs) > len(warned) > ENOUGH
    assert any(pair.in_time for pair in pairs)
    assert any(not pair.in_time for pair in warned)


def test_the_committed_runs_are_of_the_plan():
    store, runs = RunStore(STORED / ID), STUDIES[ID].runs(STORED)
    assert len(runs) - len(missing(runs, store)) == len(store.records) > 0


def test_the_limit_of_qk_clip_is_the_power_of_two_above_the_logits_of_healthy_runs():
    logits = findings(STORED).logits
    assert LIMIT / 2 < max(logits) <= LIMIT


def test_the_page_says_what_the_committed_runs_came_to(tmp_path, capsys):
    assert main(["reproduce", "rescue", "--at-most", "0", "--out", str(tmp_path / "out")]) == 0
    found = findings(STORED)
    said = capsys.readouterr().out
    assert f"Of {found.of(NOTHING).failing} runs that fail" in said
    for name in TREATMENTS:
        assert f"{name} {found.of(name).rescued}" in said
    assert set(STUDIES[ID].evidence(STORED)) <= {"qk_clip", "qk_norm"}
