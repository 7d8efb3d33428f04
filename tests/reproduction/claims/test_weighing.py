"""How cells of trained networks decide a claim: with made-up cells."""

import random

import pytest

from uncollapse.reproduction.artefacts import ARTEFACTS
from uncollapse.reproduction.claims.cells import cells, made_up
from uncollapse.reproduction.claims.claim import CONDITION, FAILS, HOLDS, PENDING, SCALE, Run
from uncollapse.reproduction.claims.registry import claims
from uncollapse.reproduction.claims.weighing import compare, toward

from .made_cells import planned, written

CLAIMS = claims()
TRAINED = [claim for claim in CLAIMS.values() if claim.artefacts]
NUMBERS = ("perplexity", "accuracy", "cosine_aligned", "residual_ratio", "entropy_mean", "qk_scale", "localisation")
GPT, SKIPFREE, ABLATION = "hopfield-main-gpt2", "hopfield-skipfree", "hopfield-ablation"
WIDE = (0.9, 1.0, 1.1)  # of the seeds: a spread that leaves everything open


def seeded(artefact, number, levels, spread=(1.0, 1.001, 1.002)):
    """All planned cells, around a level by method."""
    return planned(artefact, number, lambda cell: levels.get(cell.method, 1.0) * spread[cell.seed])


def test_cells_decide_and_their_absence_is_pending(tmp_path):
    claim = CLAIMS[GPT]
    none = claim.check(Run("smallest", cells=tmp_path / "no folder"))
    assert none.verdict == PENDING
    assert "6 of 6 planned cells are not in yet" in none.sentence
    worse = claim.check(written(tmp_path, made_up(GPT, "perplexity", {"self-attention": 20.0, "hopfield": 25.0})))
    assert worse.verdict == FAILS
    assert "opposed, at 95 % confidence over seeds" in worse.sentence


def test_tiny_cells_and_those_of_other_artefacts_decide_nothing(tmp_path):
    claim = CLAIMS[GPT]
    tiny = [{**cell, "settings": {"scale": "tiny"}} for cell in claim.mutation.cells]
    other = [{**cell, "artefact": "another"} for cell in claim.mutation.cells]
    run = written(tmp_path, tiny, other)
    assert claim.check(run).verdict == PENDING
    assert len(cells(["another"], run.cells)) == 6


def test_one_seed_decides_nothing_where_more_are_planned(tmp_path):
    one = [cell for cell in CLAIMS[GPT].mutation.cells if cell["seed"] == 0]
    found = CLAIMS[GPT].check(written(tmp_path, one))
    assert found.verdict == PENDING
    assert "2 cells are in, too few to tell" in found.sentence


@pytest.mark.parametrize(
    ("gap", "verdict", "words"),
    [
        (3.0, HOLDS, "as claimed"),
        (1.0, SCALE, "undecided"),  # below the 2 points that count
        (-1.0, FAILS, "no difference as claimed of 2 points or more"),
        (-3.0, FAILS, "opposed"),
    ],
)
def test_one_seed_decides_by_the_smallest_difference_where_no_more_are_planned(tmp_path, gap, verdict, words):
    one = planned(SKIPFREE, "accuracy", lambda cell: 40.0 + gap * (cell.method == "hopfield"))
    found = CLAIMS[SKIPFREE].check(written(tmp_path, one))
    assert found.verdict == verdict
    assert f"{words} in 4" in found.sentence
    assert "with one seed a difference counts from 2 points on" in found.sentence
    assert "confidence" not in found.sentence
    assert f"layers 8: {gap:+.3g} (one seed)" in found.sentence


def test_an_interval_that_allows_either_sign_stays_open(tmp_path):
    """It waits while cells are missing, and once all are in it cannot be told at this scale."""
    levels = {"self-attention": 20.0, "hopfield": 20.0}
    every = seeded(GPT, "perplexity", levels, WIDE)
    open_still = CLAIMS[GPT].check(written(tmp_path, every[:-6]))  # without the third seed
    assert open_still.verdict == PENDING
    assert "2 of 6 planned cells are not in yet" in open_still.sentence
    found = CLAIMS[GPT].check(written(tmp_path, every))
    assert found.verdict == SCALE
    assert "+0 (-4.53 to +4.53), undecided, at 95 % confidence over seeds." in found.sentence
    assert "All planned cells are in" in found.sentence


def test_nothing_is_pending_once_all_planned_cells_are_in(tmp_path):
    """Whatever the cells say: here, that nothing is known."""
    noise = random.Random(0)
    every = [
        {
            **cell,
            "numbers": {number: noise.uniform(0.5, 1.5) for number in NUMBERS},
            "curves": {"step": [0, 1, 2, 3, 4], "entropy_mean": [noise.random() for _ in range(5)]},
        }
        for artefact in ARTEFACTS
        for cell in planned(artefact, "", lambda cell: 0.0)
    ]
    run = written(tmp_path, every)
    found = {claim.id: claim.check(run) for claim in TRAINED}
    assert [id for id, evidence in found.items() if evidence.verdict == PENDING] == []
    assert SCALE in {evidence.verdict for evidence in found.values()}
    assert not [id for id, evidence in found.items() if "not in yet" in evidence.sentence]


def test_methods_that_are_not_compared_are_not_waited_for(tmp_path):
    levels = {"self-attention": 20.0, "hopfield": 20.0}
    both = [cell for cell in seeded(GPT, "perplexity", levels, WIDE) if cell["method"] in levels]
    assert CLAIMS[GPT].check(written(tmp_path, both)).verdict == SCALE


def test_a_null_that_is_known_well_enough_fails(tmp_path):
    same = made_up(GPT, "perplexity", {"self-attention": 20.0, "hopfield": 20.0})
    found = CLAIMS[GPT].check(written(tmp_path, same))
    assert found.verdict == FAILS
    assert "no difference as claimed of 2 % or more" in found.sentence


def test_diverged_networks_are_left_out_and_named(tmp_path):
    every = seeded(GPT, "perplexity", {"self-attention": 20.0, "hopfield": 25.0})
    lost = [
        {**cell, "status": "diverged", "numbers": {"perplexity": 1e9}}
        if (cell["method"], cell["seed"]) == ("hopfield", 2)
        else cell
        for cell in every
    ]
    found = CLAIMS[GPT].check(written(tmp_path, lost))
    assert found.verdict == FAILS
    assert "left out: hopfield-main-gpt2, hopfield, seed 2." in found.sentence
    assert "not in yet" not in found.sentence  # it is in, and will not come again
    assert found.numbers["diverged, left out"] == 1
    all_lost = CLAIMS[GPT].check(written(tmp_path, [{**cell, "status": "diverged"} for cell in every]))
    assert all_lost.verdict == SCALE


def test_one_pair_is_enough_where_some_is_claimed(tmp_path):
    def accuracy(good):
        return lambda cell: 50.0 if cell.method == "self-attention" else good if cell.own["alpha"] == 1.0 else 45.0

    claim = CLAIMS[ABLATION]
    for good, verdict in ((60.0, HOLDS), (51.0, SCALE), (45.0, FAILS)):
        found = claim.check(written(tmp_path, planned(ABLATION, "accuracy", accuracy(good))))
        assert found.verdict == verdict
    assert "lowest with alpha" in found.sentence  # nine pairs are too many to list
    assert len(found.numbers) == 9 + 1


def test_many_pairs_share_the_risk_of_luck(tmp_path):
    """A difference that would do alone does not do as the best of many."""
    gains = [{"alpha": 0.1 * n} for n in range(9)]
    plain = made_up(ABLATION, "accuracy", {"self-attention": 50.0})
    pairs = made_up(ABLATION, "accuracy", {"hopfield": 50.12}, gains)
    alone = [cell for cell in pairs if cell["settings"] == gains[0]]
    assert CLAIMS[ABLATION].check(written(tmp_path, plain, alone)).verdict == HOLDS
    assert CLAIMS[ABLATION].check(written(tmp_path, plain, pairs)).verdict == FAILS


@pytest.mark.parametrize(
    ("plain", "ours", "verdict"),
    [
        (0.5, 0.04, HOLDS),
        (0.5, 0.3, CONDITION),  # it shrinks, and is not gone
        (0.5, 0.6, FAILS),
        (0.005, 0.0, SCALE),  # there is no group to lose
    ],
)
def test_a_group_disappears_only_where_there_is_one(tmp_path, plain, ours, verdict):
    artefact = "hopfield-similarity-gpt2"
    every = seeded(artefact, "cosine_aligned", {"self-attention": plain, "hopfield": ours})
    found = CLAIMS["hopfield-fig4-trained"].check(written(tmp_path, every))
    assert found.verdict == verdict
    assert f"{ours:.3g}" in found.sentence
    assert ("nothing to lose" in found.sentence) == (verdict == SCALE)


def test_settings_without_a_group_do_not_count(tmp_path):
    """GPT has no group of aligned tokens; the ViT alone tells whether the hidden states make it smaller."""
    groups = [
        seeded(f"hopfield-similarity-{model}", "cosine_aligned", {"self-attention": plain, "alpha-hidden-only": ours})
        for model, plain, ours in (("gpt2", 0.005, 0.009), ("vit", 0.1, 0.05))
    ]
    found = CLAIMS["hopfield-abstract-hidden-trained"].check(written(tmp_path, *groups))
    assert found.verdict == HOLDS
    assert "nothing to lose in 1" in found.sentence
    assert "hopfield-similarity-vit: " in found.sentence


@pytest.mark.parametrize(("ours", "verdict"), [(3.9, HOLDS), (3.75, SCALE), (3.0, FAILS), (5.0, FAILS)])
def test_entropies_are_alike_within_a_quarter_of_a_nat(tmp_path, ours, verdict):
    every = seeded("hopfield-entropy-vit", "entropy_mean", {"self-attention": 4.0, "hopfield": ours})
    assert CLAIMS["hopfield-fig13-20-trained"].check(written(tmp_path, every)).verdict == verdict


def test_settings_are_compared_with_their_own_kind(tmp_path):
    """Better in one setting and worse in the other; the method's own alpha does not set cells apart."""
    good = made_up("a", "accuracy", {"plain": 50.0}, [{"model": "S"}]) + made_up(
        "a", "accuracy", {"ours": 60.0}, [{"model": "S", "alpha": 0.5}]
    )
    bad = made_up("a", "accuracy", {"plain": 50.0, "ours": 40.0}, [{"model": "L"}])
    other = made_up("b", "accuracy", {"plain": 50.0})
    found = compare(written(tmp_path, good, bad, other), ["a"], "accuracy", "ours", "plain", toward(1))
    assert found.verdict == CONDITION
    assert set(found.numbers) == {
        "a, model L: accuracy of ours less that of plain",
        "a, model S, alpha 0.5: accuracy of ours less that of plain",
        "cells found",
    }


def over_kappa(figure, number, level, spread=lambda cell: 1.0):
    """All planned cells, the number by the rank of kappa_2."""
    ranks = {0.0: 0, 1e-3: 1, 1e-2: 2, 1e-1: 3, 1.0: 4}

    def of(cell):
        return level(ranks[cell.own["kappa_mean"]]) * spread(cell) if cell.own else 1.0

    return planned(f"localization-fig{figure}", number, of)


def test_kappa_is_compared_at_one_kappa_scale(tmp_path):
    """The figures vary kappa_2 at kappa_1 = 100; networks without penalty are no part of that line."""
    claim = CLAIMS["localization-fig6-scale"]
    plain = made_up("localization-fig6", "qk_scale", {"plain": 1e6, "forced-zero": 1e-9})
    assert claim.check(written(tmp_path, claim.mutation.cells, plain)).verdict == HOLDS


def test_a_scale_over_decades_is_judged_alike_with_one_seed_and_three(tmp_path):
    for falls, verdict in ((-1.0, HOLDS), (1.0, FAILS)):
        cells = over_kappa(6, "qk_scale", lambda rank, falls=falls: 10.0 ** (falls * rank))
        for seeds in (1, 3):
            run = written(tmp_path, [cell for cell in cells if cell["seed"] < seeds])
            found = CLAIMS["localization-fig6-scale"].check(run)
            assert found.verdict == verdict
            assert f"over the whole range of kappa_2 of log10 of qk_scale: {4 * falls:+.3g}" in found.sentence
            assert "the scatter about a straight line, not over seeds" in found.sentence


@pytest.mark.parametrize("key", ["scale", "entropy", "perplexity"])
def test_no_change_over_kappa_fails(tmp_path, key):
    """One seed and no more planned: a line that is flat to a hundredth of a percent says no, not later."""
    numbers = {"scale": "qk_scale", "entropy": "entropy_mean", "perplexity": "perplexity"}
    flat = over_kappa(8, numbers[key], lambda rank: 30.0 + 0.003 * (-1) ** rank)
    found = CLAIMS[f"localization-fig8-{key}"].check(written(tmp_path, flat))
    assert found.verdict == FAILS
    assert "no change as claimed of 2 % or more" in found.sentence


def test_a_change_over_kappa_that_the_scatter_hides_is_open(tmp_path):
    wild = over_kappa(8, "perplexity", lambda rank: 30.0 + 9.0 * (-1) ** rank)
    claim = CLAIMS["localization-fig8-perplexity"]
    assert claim.check(written(tmp_path, wild)).verdict == SCALE
    assert claim.check(written(tmp_path, wild[:-1])).verdict == PENDING


def test_three_points_are_no_line(tmp_path):
    few = [cell for cell in over_kappa(8, "perplexity", lambda rank: 30.0 - rank) if cell["method"] == "locater"]
    assert CLAIMS["localization-fig8-perplexity"].check(written(tmp_path, few[:3])).verdict == PENDING


@pytest.mark.parametrize(("level", "verdict"), [(0.05, HOLDS), (0.1, SCALE), (0.3, FAILS)])
def test_uniform_propagation_is_a_level(tmp_path, level, verdict):
    every = seeded("localization-fig7", "localisation", {"plain": level}, (0.99, 1.0, 1.01))
    found = CLAIMS["localization-fig7-uniform"].check(written(tmp_path, every))
    assert found.verdict == verdict
    assert found.sentence.startswith(f"localisation of plain: {level:.3g} (")


def test_phases_are_asked_of_both_networks(tmp_path):
    claim = CLAIMS["localization-phases"]
    steady = [cell for cell in claim.opposite.cells if cell["method"] == "plain"]
    turning = [cell for cell in claim.mutation.cells if cell["method"] == "locater"]
    found = claim.check(written(tmp_path, steady, turning))
    assert found.verdict == CONDITION
    assert "as claimed in 1 of 2 settings, opposed in 1 (locater: 1 (1 to 1); plain: " in found.sentence
