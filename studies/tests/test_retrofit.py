"""Retrofits: jumps, recoveries and ends are counted right, gentle starts are the stock model, the page is the runs'."""

import math
import os
from pathlib import Path

import pytest

from uncollapse.cli import main
from uncollapse.statistics import FEWEST
from uncollapse_studies import locations
from uncollapse_studies.rescue.judging import RESCUED
from uncollapse_studies.retrofit.findings import ROUNDING, RetrofitCourse, RetrofitFindings, courses_of, recovered_after
from uncollapse_studies.retrofit.hosts import batches_of, held_out_of, loaded
from uncollapse_studies.retrofit.plan import CONTROL, HOSTS, RETROFITS, SEEDS, SMALL, STORIES, plan, trial_plan
from uncollapse_studies.retrofit.record import made, put_in
from uncollapse_studies.retrofit.study import ID
from uncollapse_studies.retrofit.words import evidence_of, sentences, summary
from uncollapse_studies.short_runs.network import TINY
from uncollapse_studies.short_runs.store import RunStore
from uncollapse_studies.short_runs.training import loss_of
from uncollapse_studies.study import STUDIES, missing

STORED = locations.results()
FOLDER = Path(os.environ.get("UNCOLLAPSE_DATA", "/nowhere"))
DATA = pytest.mark.skipif(
    not ((FOLDER / "tinyshakespeare").is_dir() and (FOLDER / "models/stories260K").is_dir()),
    reason="needs tinyshakespeare and models/stories260K in $UNCOLLAPSE_DATA",
)
GENTLE = ("output_gate", "sink from -30", "hopfield warmed up")  # starts that are the stock function
WAYS = {way.label: way for way in RETROFITS}


def course(label, changes, seed=0, host=SMALL, stock=2.0):
    """A run measured at updates 0, 10, ..."""
    record = {"host": host, "retrofit": label, "seed": seed, "stock": stock, "moved": 0.0, "changes": changes}
    return RetrofitCourse.of(record | {"steps": [10 * place for place in range(len(changes))]})


def findings(finals, jump=0.5):
    """Runs of three updates that are measured: label -> the change at the end, one a seed."""
    return RetrofitFindings(
        [
            course(label, [0.0 if label == CONTROL else jump, 0.1, end], seed)
            for label, ends in finals.items()
            for seed, end in enumerate(ends)
        ]
    )


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ([0.5, 0.2, 0.0, -0.1], 20),
        ([0.5, 0.2, 0.1, 0.1], None),  # never
        ([0.0, -0.1, -0.1, -0.1], 0),  # always below
        ([0.0, 0.3, 0.1, -0.1], 30),  # a warm-up is above only later
        ([0.5, -0.1, 0.1, -0.1], 30),  # once below is not for good
        ([0.5, -0.1, math.nan, math.nan], None),  # diverged
    ],
)
@pytest.mark.parametrize("drift", [-0.5, 0.0, 0.5])  # of the control and of what it is compared with
def test_a_model_has_recovered_once_its_loss_stays_at_the_controls(changes, after, drift):
    control = course(CONTROL, [0.0, drift, drift, drift])
    assert (
        course("qk_norm", [one + drift * (place > 0) for place, one in enumerate(changes)]).recovered(control) == after
    )


def test_two_percent_above_the_control_is_recovered_and_three_is_not():
    assert recovered_after([0, 10], [1.5, RESCUED]) == 10
    assert recovered_after([0, 10], [1.5, 1.03]) is None


def test_a_course_is_read_from_its_record():
    own = course("qk_norm", [0.5, 0.1, None])
    assert own.jump == 0.5
    assert math.isnan(own.final)
    assert course("qk_norm", [0.5, -0.25]).final == 1.75


def test_ends_are_compared_with_the_control_of_the_same_model():
    found = findings({CONTROL: [-0.1, -0.11, -0.12], "qk_norm": [0.4, 0.41, 0.42], "sink": [-0.1, -0.11, -0.12]})
    assert found.against[SMALL, "qk_norm"].verdict == "higher"
    assert found.against[SMALL, "qk_norm"].value == pytest.approx(0.52)
    assert found.against[SMALL, "sink"].verdict == "undecided"
    assert (SMALL, CONTROL) not in found.against
    text = " ".join(sentences(found))
    assert "worse qk_norm +0.52" in text
    assert f"a difference of {found.against[SMALL, 'sink'].detectable:.2g} could have been seen" in text
    table = summary(found).set_index("put in")
    assert table.loc["qk_norm", "recovered after"] == "never"
    assert table.loc["sink", "recovered after"] == "10"
    assert table.loc[CONTROL, "recovered after"] == ""


def test_a_run_that_diverged_is_said_and_not_compared():
    found = findings({CONTROL: [-0.1, -0.2], "hopfield": [None, 0.1], "sink": [-0.1, -0.2]})
    assert set(found.against) == {(SMALL, "sink")}
    assert "Diverged: hopfield." in " ".join(sentences(found))
    assert summary(found).set_index("put in").loc["hopfield", "final loss"] == "diverged"


def test_there_is_evidence_only_with_seeds_that_can_decide():
    ends = {CONTROL: [-0.1, -0.11, -0.12], "qk_norm": [0.4, 0.41, 0.42]}
    told = evidence_of(findings(ends))
    assert set(told) == {"qk_norm"}
    assert "qk_norm in small LLaMA +0.5, +0.52 (worse)" in told["qk_norm"]
    assert evidence_of(findings({label: values[: FEWEST - 1] for label, values in ends.items()})) == {}


def test_every_way_is_run_with_every_model_and_order():
    names = [one.name for one in plan()]
    assert len(set(names)) == len(names) == len(HOSTS) * len(RETROFITS) * len(SEEDS)
    assert len(SEEDS) >= FEWEST


@DATA
@pytest.mark.parametrize("host", [STORIES, SMALL])
def test_a_gentle_start_is_the_stock_model_and_the_others_are_not(host):
    own = next(one.host for one in trial_plan(TINY) if one.host.name == host)
    ids, held_out = batches_of(own, 0)[0], held_out_of(own)
    stock = loss_of(loaded(own), held_out)
    for label in (*GENTLE, "qk_norm", "sink", "hopfield"):
        model = loaded(own)
        put_in(model, WAYS[label], TINY.updates, ids)
        assert (abs(loss_of(model, held_out) - stock) <= ROUNDING) == (label in GENTLE), label


@DATA
def test_fitted_gains_jump_less_in_a_trained_model():
    own = next(one.host for one in trial_plan(TINY) if one.host.name == STORIES)
    ids, held_out = batches_of(own, 0)[0], held_out_of(own)
    stock, jumps = loss_of(loaded(own), held_out), []
    for label in ("qk_norm", "qk_norm fitted", "qk_norm fitted by head"):
        model = loaded(own)
        put_in(model, WAYS[label], TINY.updates, ids)
        jumps.append(loss_of(model, held_out) - stock)
    assert jumps[0] > jumps[1] > jumps[2] > 0


@DATA
@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_no_text_is_both_held_out_and_trained_on(host):
    own = next(one.host for one in trial_plan(TINY) if one.host.name == host.name)
    held_out, batches = held_out_of(own), batches_of(own, 0)
    assert batches.shape == (TINY.updates, TINY.batch, TINY.length)
    assert not {*map(tuple, held_out.tolist())} & {*map(tuple, batches.flatten(0, 1).tolist())}
    assert batches.tolist() != batches_of(own, 1).tolist()


@DATA
def test_alpha_of_a_warm_up_has_risen_to_that_at_once():
    own = trial_plan(TINY)[0].host
    at_once, risen = loaded(own), loaded(own)
    put_in(at_once, WAYS["hopfield"], TINY.updates, batches_of(own, 0)[0])
    warmup = put_in(risen, WAYS["hopfield warmed up"], TINY.updates, batches_of(own, 0)[0])
    warmup.set(risen, TINY.updates)
    assert risen.config.uncollapse == at_once.config.uncollapse


@DATA
def test_a_run_can_be_repeated_and_the_control_has_no_jump():
    control = trial_plan(TINY)[0]
    one, other = made(control), made(control)
    assert one["changes"] == other["changes"]
    assert one["changes"][0] == 0.0
    assert one["steps"] == list(range(0, TINY.updates + 1, TINY.every))


@DATA
def test_a_trial_is_made_and_drawn(tmp_path, capsys):
    assert main(["reproduce", ID, "--quick", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert all(f"{host.name}, held-out loss" in text for host in HOSTS)
    assert "one seed decides nothing" in text
    assert (tmp_path / "out" / f"{ID}.csv").is_file()


# What is committed.


def test_the_committed_runs_are_those_of_the_plan():
    store, runs = RunStore(STORED / ID), STUDIES[ID].runs(STORED)
    assert missing(runs, store) == []
    assert set(store.records) == {run.name for run in runs}
    for host in HOSTS:
        assert len({record["stock"] for record in store.records.values() if record["host"] == host.name}) == 1


def test_gentle_starts_of_the_committed_runs_did_not_jump():
    jumps = {(one.label, one.host): abs(one.jump) for one in courses_of(RunStore(STORED / ID))}
    assert all(jump <= ROUNDING for (label, _), jump in jumps.items() if label in GENTLE)


def test_the_study_has_a_sentence_for_each_remedy():
    assert set(STUDIES[ID].evidence(STORED)) == {way.name for way in RETROFITS if way.name}


def test_the_command_draws_what_is_kept(tmp_path, capsys):
    assert main(["reproduce", ID, "--at-most", "0", "--out", str(tmp_path / "out")]) == 0
    assert "against the control" in capsys.readouterr().out
