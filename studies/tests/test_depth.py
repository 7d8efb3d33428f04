"""Without residual connections or norms: when an accuracy is reached, what trains, and what the study makes of it."""

import dataclasses
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import uncollapse as uc
from uncollapse.cli import main
from uncollapse_studies import locations
from uncollapse_studies.depth.findings import DepthFindings
from uncollapse_studies.depth.network import NetSize, batches, guess_of, start_as_identity, vit
from uncollapse_studies.depth.plan import (
    ADAMW,
    FULL,
    LONGER,
    METHODS,
    NORM_FREE,
    PLAIN,
    REMEDIES,
    RESIDUAL,
    SKIP_FREE,
    TRIAL,
    DepthRun,
    Method,
    count,
    plan,
)
from uncollapse_studies.depth.record import (
    CLEAR,
    DepthCourse,
    at_best_rate,
    best_rates,
    trained_runs,
    trains,
    updates_to_reach,
)
from uncollapse_studies.depth.study import ID
from uncollapse_studies.depth.training import train
from uncollapse_studies.depth.words import evidence, sentences
from uncollapse_studies.short_runs.network import TINY
from uncollapse_studies.short_runs.store import RunStore
from uncollapse_studies.study import STUDIES, missing

STORED = locations.results()
DATA = pytest.mark.skipif(
    not (Path(os.environ.get("UNCOLLAPSE_DATA", "/nowhere")) / "cifar-10").is_dir(),
    reason="needs cifar-10 in $UNCOLLAPSE_DATA",
)
GUESS = {"loss": 2.3, "accuracy": 0.1}


def made(accuracies=(0.1, 0.2, 0.3), losses=(2.2, 2.1, 2.0), **about):
    """A run with made-up numbers, measured every 50 updates."""
    steps = [50 * (k + 1) for k in range(len(accuracies))]
    numbers = {"steps": steps, "accuracy": list(accuracies), "loss": list(losses), "guess": GUESS}
    usual = {"part": SKIP_FREE, "method": PLAIN, "layers": 4, "seed": 0, "rate": 1e-3}
    return DepthCourse.of({**usual, "updates": steps[-1], "ended": steps[-1], **numbers, **about})


def test_an_accuracy_is_reached_at_the_first_measurement_that_has_it():
    run = made([0.1, 0.25, 0.2, 0.4], [2.3] * 4)
    assert updates_to_reach(run, 0.2) == 100
    assert updates_to_reach(run, 0.25) == 100
    assert updates_to_reach(run, 0.3) == 200
    assert updates_to_reach(run, 0.41) is None


def test_an_accuracy_is_that_of_the_last_measurement_and_a_guess_where_there_is_none():
    run = made([0.2, 0.3], [2.1, 2.0])
    assert [run.accuracy(update) for update in (49, 50, 99, 100, 500)] == [0.1, 0.2, 0.2, 0.3, 0.3]
    broken = made([0.2, 0.3], [2.1, 2.0], updates=200, ended=120)
    assert broken.diverged
    assert [broken.accuracy(update) for update in (100, 119, 120, 200)] == [0.3, 0.3, 0.1, 0.1]


@pytest.mark.parametrize(
    ("run", "does"),
    [
        (made(losses=[2.2, 2.1, 2.0]), True),
        (made(losses=[2.2, 2.1, GUESS["loss"] - CLEAR / 2]), False),
        (made(losses=[2.0, 2.1, 2.6]), False),  # it had, and lost it
        (made(losses=[2.0, 1.9, 1.8], updates=400), False),  # ended before its time
        (made(losses=[2.0, 1.9, None]), False),
    ],
)
def test_a_network_trains_if_it_ends_clearly_below_a_guess(run, does):
    assert trains(run) is does
    assert run.last_loss <= GUESS["loss"]


def test_the_rate_that_is_best_with_seed_0_is_that_of_all_seeds():
    high = [made([0.3], [1.8], seed=0, rate=0.1)]
    low = [made([0.4], [2.0], seed=seed, rate=0.01) for seed in (0, 1, 2)]
    assert at_best_rate([*high, *reversed(low)], {0.1, 0.01}) == low
    assert at_best_rate(low, {0.1, 0.01}) == []  # seed 0 has not tried all
    norm_free = [dataclasses.replace(run, part=NORM_FREE) for run in (*high, *low)]
    assert at_best_rate(norm_free, {0.1, 0.01}) == norm_free[:1]  # there the loss decides


def test_other_seeds_are_planned_where_seed_0_has_chosen_a_rate():
    first = plan()
    assert {run.seed for run in first} == {0}
    tried = [run for run in first if run.key == first[0].key]
    runs = [made([0.1 * (k + 1)], [2.0], method=run.method, rate=run.rate) for k, run in enumerate(tried)]
    assert best_rates(runs[:-1], FULL) == {}
    more = [run for run in plan(best=best_rates(runs, FULL)) if run not in first]
    assert {(run.key, run.rate) for run in more} == {(tried[-1].key, tried[-1].rate)}
    assert [run.seed for run in more] == list(range(1, FULL.seeds))


def some_runs(seeds):
    """Two depths: alpha reaches what the net with residual connections has, and nothing else does."""
    runs = []
    for seed in range(seeds):
        for layers in (4, 16):
            noise = 0.002 * seed
            runs += [
                made([0.2, 0.30 + noise], [2.1, 1.9], method=RESIDUAL, layers=layers, seed=seed),
                made([0.1, 0.1, 0.1, 0.10 + noise], [2.3] * 4, layers=layers, seed=seed),
                made([0.2, 0.2, 0.4, 0.40 + noise], [2.0] * 4, method="alpha, normed", layers=layers, seed=seed),
                made([0.2, 0.2, 0.2, 0.29], [2.0] * 4, method="hopfield, normed", layers=layers, seed=seed),
            ]
        for name, loss in ((PLAIN, 2.3), ("qk_norm", 1.9 + noise)):
            runs += [
                made([0.2], [own], part=NORM_FREE, method=name, layers=6, seed=seed, rate=rate)
                for rate, own in ((0.1, loss), (1.0, 2.5))
            ]
    return runs


def test_updates_are_counted_to_what_the_net_with_residual_connections_of_the_same_seed_ends_with():
    found = DepthFindings(some_runs(2)).by_depth
    assert list(found) == [4, 16]
    deepest = found[16]
    assert deepest.updates == 100
    assert deepest.methods["alpha, normed"].reached == [150, 150]
    assert deepest.methods[PLAIN].reached == [None, None]
    assert [name for name, own in deepest.methods.items() if name != RESIDUAL and own.always] == ["alpha, normed"]
    assert deepest.against["alpha, normed"].verdict == "higher"
    assert deepest.inheriting.verdict == "lower"


def test_networks_that_guess_are_alike_whatever_class_they_give():
    methods = {RESIDUAL: (0.3, 2.0), PLAIN: (0.1, 2.3), "alpha, normed": (0.12, 2.3)}
    runs = [
        made([accuracy], [loss], method=name, seed=seed)
        for name, (accuracy, loss) in methods.items()
        for seed in (0, 1)
    ]
    found = DepthFindings(runs)
    assert found.by_depth[4].against["alpha, normed"].verdict == "undecided"
    assert any("As little as the plain net: alpha, normed." in one for one in sentences(found, FULL, 10))


def test_the_sentences_say_what_is_reached_what_trains_and_what_stays_open():
    told = sentences(DepthFindings(some_runs(2)), FULL, 10)
    assert "is reached by alpha, normed (150 updates)" in told[0]
    assert "The aim is reached." in told[0]
    assert any("1 of 2 train" in one and "not: plain (2.30)" in one for one in told)
    one_seed = sentences(DepthFindings(some_runs(1)), FULL, 10)
    assert any("One seed decides nothing" in one for one in one_seed)
    assert not any("Better" in one for one in one_seed)
    without = [run for run in some_runs(2) if run.method != "alpha, normed"]
    assert "The aim is not reached." in sentences(DepthFindings(without), FULL, 10)[0]
    assert sentences(DepthFindings(some_runs(2)[:3]), FULL, 10)[0].startswith("Pending")


def test_evidence_needs_several_seeds():
    assert evidence(DepthFindings(some_runs(1))) == {}
    found = evidence(DepthFindings(some_runs(2)))
    assert set(found) == {"hopfield", "qk_norm"}
    assert "29.0 % against 10.0 % without it (better)" in found["hopfield"]
    assert "trains with 2 of 2 seeds" in found["qk_norm"]


def test_the_plan_has_every_remedy_and_can_be_cut_off():
    runs = plan()
    assert len({run.name for run in runs}) == len(runs)
    parts = [run.part for run in runs]
    assert parts == sorted(parts, key=[SKIP_FREE, NORM_FREE].index)
    first = [run for run in runs if run.part == SKIP_FREE]
    assert [run.layers for run in first] == sorted(run.layers for run in first)
    assert {run.method for run in first if run.layers == 4} == {RESIDUAL, *METHODS}
    assert {run.updates for run in first if run.method != RESIDUAL} == {LONGER * FULL.updates}
    assert set(REMEDIES) == {PLAIN, *uc.remedies.list()["name"]}
    rates = FULL.norm_free_rates
    assert [high / low for low, high in pairwise(rates)] == pytest.approx([10.0, 10.0])


def test_every_image_is_seen_once_before_one_is_seen_again():
    size = NetSize(batch=4, images=8)
    found = batches(size, 4, seed=1)
    assert found.shape == (4, 4)
    for half in (found[:2], found[2:]):
        assert sorted(half.flatten().tolist()) == list(range(8))
    assert not torch.equal(found, batches(size, 4, seed=2))


def test_a_guess_has_the_entropy_of_even_classes():
    labels = torch.arange(10)
    assert guess_of(labels, labels).loss == pytest.approx(torch.tensor(10.0).log().item())
    assert guess_of(labels, labels).accuracy == pytest.approx(0.1)


def test_networks_lack_what_they_are_said_to_lack():
    size, pixels = TRIAL.network, torch.randn(2, 3, 32, 32)
    whole, bare = vit(size, 2, 0), vit(size, 2, 0, norms=False)
    assert any(isinstance(module, nn.LayerNorm) for module in whole.modules())
    assert not any(isinstance(module, nn.LayerNorm) for module in bare.modules())
    skip_free = vit(size, 2, 0, residual=False)
    for layer in (*whole.vit.layers, *skip_free.vit.layers):  # branches that add nothing
        for last in (layer.attention.o_proj, layer.mlp.fc2):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
    entering = whole.vit.embeddings(pixels)
    assert torch.equal(whole.vit.layers[0](entering), entering)
    assert torch.equal(skip_free.vit.layers[0](entering), torch.zeros_like(entering))


def test_an_mlp_and_values_can_start_as_the_identity():
    model, tokens = vit(TRIAL.network, 2, 0), torch.randn(1, 3, TRIAL.network.width)
    start_as_identity(model, values=True)
    for layer in model.vit.layers:
        torch.testing.assert_close(layer.mlp(tokens), tokens)
        torch.testing.assert_close(layer.attention.o_proj(layer.attention.v_proj(tokens)), tokens)
    wide = vit(dataclasses.replace(TRIAL.network, mlp_width=48), 1, 0)
    with pytest.raises(ValueError, match="twice the width"):
        start_as_identity(wide, values=False)


def test_alpha_cannot_replace_a_residual_connection_that_is_not_there():
    with pytest.raises(ValueError, match="needs a residual to replace"):
        uc.apply(vit(TRIAL.network, 2, 0, residual=False), "hopfield", skip="replace")


@DATA
@pytest.mark.parametrize("method", [method for method in METHODS if method != PLAIN])
def test_a_method_changes_what_a_skip_free_net_computes(method):
    def outputs(own):
        run = DepthRun(SKIP_FREE, method, own.remedy, 2, 0, 1e-3, 1, ADAMW, 1, False, True, own.start)
        return train(run, TRIAL.network)["loss"]

    assert outputs(METHODS[method]) != outputs(Method())


@DATA
def test_every_remedy_can_be_given_to_a_net_without_norms():
    for name, remedy in REMEDIES.items():
        run = next(run for run in plan() if run.part == NORM_FREE and run.method == name)
        small = DepthRun(NORM_FREE, name, remedy, 2, 0, 0.01, 2, run.optimizer, 0, residual=True, norms=False)
        assert train(small, TRIAL.network)["ended"] == 2, name


@DATA
def test_a_trial_runs_from_end_to_end(tmp_path, capsys):
    assert main(["reproduce", ID, "--quick", "--out", str(tmp_path / "out")]) == 0
    made = count(TRIAL)  # with the seeds that follow once the best rates are known
    assert f"{made} of {count()} runs are made" in capsys.readouterr().out
    assert (tmp_path / "out" / f"{ID}.csv").is_file()
    assert (tmp_path / "out" / f"{ID}.html").is_file()


@DATA
def test_a_run_can_be_repeated_and_differs_by_seed():
    def accuracies(seed):
        run = next(run for run in plan(TRIAL) if run.method == "alpha, normed" and run.seed == seed)
        return train(run, TRIAL.network)["loss"]

    assert accuracies(0) == accuracies(0)
    assert accuracies(0) != accuracies(1)


def test_a_trial_is_not_taken_for_the_study():
    full, trial = (STUDIES[ID].runs(STORED, size) for size in (None, TINY))
    assert not {run.definition for run in full} & {run.definition for run in trial}


# What is committed.


def test_the_committed_runs_are_those_of_the_plan():
    store, runs = RunStore(STORED / ID), STUDIES[ID].runs(STORED)
    assert len(runs) - len(missing(runs, store)) == len(store.records) > 0
    assert missing([run for run in runs if run.name.endswith("seed 0")], store) == []


def test_the_committed_net_with_residual_connections_has_learned_something():
    found = DepthFindings(trained_runs(RunStore(STORED / ID)))
    assert found.by_depth
    for depth in found.by_depth.values():
        for run in depth.methods[RESIDUAL].runs:
            assert run.last_accuracy > 2 * run.guess.accuracy
