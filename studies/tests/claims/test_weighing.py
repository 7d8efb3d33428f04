"""How cells of trained networks decide a claim: with made-up cells."""

import json
import random

import pytest
from made_cells import planned, written

from uncollapse_studies.artefact import ArtefactCells
from uncollapse_studies.artefacts import ARTEFACTS
from uncollapse_studies.audit.cells import cells, made_up
from uncollapse_studies.audit.claim import CONDITION, HOLDS, NOT_REPRODUCED, PENDING, SCALE, AuditRun
from uncollapse_studies.audit.plan import planned as planned_cells
from uncollapse_studies.audit.registry import claims
from uncollapse_studies.audit.weighing import compare, toward
from uncollapse_studies.cells.readings import LONGEST
from uncollapse_studies.cells.store import Store
from uncollapse_studies.trained import against

CLAIMS = claims()
TRAINED = [claim for claim in CLAIMS.values() if claim.artefacts]
NUMBERS = ("perplexity", "accuracy", "cosine_aligned", "residual_ratio", "entropy_mean", "qk_scale", "localisation")
GPT, SKIPFREE, ABLATION = "hopfield-main-gpt2", "hopfield-skipfree", "hopfield-ablation"
WIDE = (0.9, 1.0, 1.1)  # of the seeds: a spread that leaves everything open
RULE = "at 95 % confidence over seeds, with Holm's correction for 5 methods"


def seeded(artefact, number, levels, spread=(1.0, 1.001, 1.002)):
    """All planned cells, around a level by method."""
    return planned(artefact, number, lambda cell: levels.get(cell.method, 1.0) * spread[cell.seed])


def more_seeds(cells):
    """Three seeds of each cell, where one is planned."""
    return [
        {
            **cell,
            "seed": seed,
            "numbers": {name: value * (1.0 + 0.001 * seed) for name, value in cell["numbers"].items()},
        }
        for cell in cells
        for seed in range(3)
    ]


def check(run):
    """A lower perplexity of hopfield, all methods at one rate."""
    return compare(run, [GPT], "perplexity", "hopfield", "self-attention", toward(-1))


def test_cells_decide_and_their_absence_is_pending(tmp_path):
    none = check(AuditRun("smallest", cells=tmp_path / "no folder"))
    assert none.verdict == PENDING
    assert "6 of 6 planned cells are not trained yet" in none.sentence
    worse = check(written(tmp_path, made_up(GPT, "perplexity", {"self-attention": 20.0, "hopfield": 25.0})))
    assert worse.verdict == NOT_REPRODUCED
    assert "opposed, at 95 % confidence over seeds" in worse.sentence


def test_tiny_cells_and_those_of_other_artefacts_decide_nothing(tmp_path):
    made = made_up(GPT, "perplexity", {"self-attention": 20.0, "hopfield": 15.0})
    tiny = [{**cell, "settings": {"budget": "tiny"}} for cell in made]
    other = [{**cell, "artefact": "another"} for cell in made]
    run = written(tmp_path, tiny, other)
    assert check(run).verdict == PENDING
    assert len(cells(["another"], run.cells)) == 6


def test_one_seed_decides_nothing_where_more_are_planned(tmp_path):
    every = seeded(GPT, "perplexity", {"self-attention": 20.0, "hopfield": 15.0})
    found = check(written(tmp_path, [cell for cell in every if cell["seed"] == 0]))
    assert found.verdict == PENDING
    assert "-5 (one seed), undecided; one seed decides nothing." in found.sentence


@pytest.mark.parametrize("gap", [30.0, 1.0, -1.0, -20.0])
def test_one_seed_decides_nothing_where_no_more_are_planned(tmp_path, gap):
    one = planned(SKIPFREE, "accuracy", lambda cell: 40.0 + gap * (cell.method == "hopfield"))
    found = CLAIMS[SKIPFREE].check(written(tmp_path, one))
    assert found.verdict == SCALE
    assert "undecided in 4" in found.sentence
    assert "one seed decides nothing" in found.sentence
    assert "confidence" not in found.sentence
    assert f"layers 8: {gap:+.3g} (one seed)" in found.sentence


@pytest.mark.parametrize(("ours", "says"), [(15.0, "as claimed"), (25.0, "opposed")])
def test_there_is_no_verdict_before_every_planned_cell_is_in(tmp_path, ours, says):
    """What two of three seeds say is told, and decides nothing."""
    every = seeded(GPT, "perplexity", {"self-attention": 20.0, "hopfield": ours})
    early = check(written(tmp_path, [cell for cell in every if cell["seed"] < 2]))
    assert early.verdict == PENDING
    assert early.sentence.startswith("So far, perplexity of hopfield less that of self-attention: ")
    assert f", {says}, {RULE}. 2 of 6 planned cells are not trained yet." in early.sentence
    assert len(early.numbers) == 2
    whole = check(written(tmp_path, every))
    assert whole.verdict == (HOLDS if says == "as claimed" else NOT_REPRODUCED)
    assert "So far" not in whole.sentence


def test_cells_of_an_earlier_definition_are_not_in(tmp_path):
    levels = {"self-attention": 20.0, "hopfield": 15.0}
    every = [cell for cell in seeded(GPT, "perplexity", levels) if cell["method"] in levels]
    current = [{**cell, "definition": planned_cells(GPT)[cell["label"], cell["seed"]].definition} for cell in every]
    assert check(written(tmp_path, current)).verdict == HOLDS
    old = {**current[0], "definition": "of another recipe"}
    found = check(written(tmp_path, [old, *current[1:]]))
    assert found.verdict == PENDING
    assert "1 of 6 planned cells are not trained yet" in found.sentence
    elsewhere = {**old, "settings": {**old["settings"], "budget": "paper"}}  # no plan says how it is to be trained
    assert len(cells([GPT], written(tmp_path, [old, elsewhere]).cells)) == 1


@pytest.mark.parametrize(
    ("shallow", "deep", "verdict"),
    [
        ((30.0, 40.0), (11.9, 10.0), HOLDS),  # the plain one is ahead, and both guess
        ((30.0, 40.0), (20.0, 10.0), CONDITION),
        ((40.0, 30.0), (10.0, 10.0), NOT_REPRODUCED),
        ((11.0, 11.9), (10.0, 10.0), SCALE),
        ((10.0, 12.5), (10.0, 10.0), HOLDS),  # one that guesses is no reason to leave a depth out
    ],
)
def test_depths_at_which_both_networks_guess_do_not_count(tmp_path, shallow, deep, verdict):
    def accuracy(cell):
        return (deep if cell.settings["layers"] == 8 else shallow)[cell.method == "hopfield"]

    found = CLAIMS[SKIPFREE].check(written(tmp_path, more_seeds(planned(SKIPFREE, "accuracy", accuracy))))
    assert found.verdict == verdict
    guessing = 3 * (max(shallow) < 12.0) + (max(deep) < 12.0)
    assert (f"both guess in {guessing}" in found.sentence) == (guessing > 0)
    assert f"{deep[1]:.3g} against {deep[0]:.3g}" in found.sentence


def test_an_interval_that_allows_either_sign_stays_open(tmp_path):
    """It waits while cells are missing, and once all are in it cannot be told at this scale."""
    levels = {"self-attention": 20.0, "hopfield": 20.0}
    every = seeded(GPT, "perplexity", levels, WIDE)
    open_still = check(written(tmp_path, every[:-6]))  # without the third seed
    assert open_still.verdict == PENDING
    assert "2 of 6 planned cells are not trained yet" in open_still.sentence
    found = check(written(tmp_path, every))
    assert found.verdict == SCALE
    assert f"+0 (-4.53 to +4.53), undecided, {RULE}." in found.sentence
    assert "All planned cells are trained" in found.sentence


def test_nothing_is_pending_once_all_planned_cells_are_in(tmp_path):
    """Whatever the cells say: here, that nothing is known."""
    noise = random.Random(0)
    every = [
        {
            **cell,
            "numbers": {number: noise.uniform(0.5, 1.5) for number in NUMBERS},
            "curves": {
                "step": [0, 1, 2, 3, 4],
                **{number: [noise.random() for _ in range(5)] for number in ("entropy_mean", "localisation")},
            },
        }
        for artefact in ARTEFACTS
        for cell in planned(artefact, "", lambda cell: 0.0)
    ]
    run = written(tmp_path, every)
    found = {claim.id: claim.check(run) for claim in TRAINED}
    assert [id for id, evidence in found.items() if evidence.verdict == PENDING] == []
    assert SCALE in {evidence.verdict for evidence in found.values()}
    assert not [id for id, evidence in found.items() if "not trained yet" in evidence.sentence]


def test_methods_that_are_not_compared_are_not_waited_for(tmp_path):
    levels = {"self-attention": 20.0, "hopfield": 20.0}
    both = [cell for cell in seeded(GPT, "perplexity", levels, WIDE) if cell["method"] in levels]
    assert check(written(tmp_path, both)).verdict == SCALE


def test_a_null_that_is_known_well_enough_fails(tmp_path):
    same = made_up(GPT, "perplexity", {"self-attention": 20.0, "hopfield": 20.0})
    found = check(written(tmp_path, same))
    assert found.verdict == NOT_REPRODUCED
    assert "no difference as claimed of 2 % or more" in found.sentence


def test_diverged_networks_are_left_out_and_named(tmp_path):
    every = seeded(GPT, "perplexity", {"self-attention": 20.0, "hopfield": 25.0})
    lost = [
        {**cell, "status": "diverged", "numbers": {"perplexity": 1e9}}
        if (cell["method"], cell["seed"]) == ("hopfield", 2)
        else cell
        for cell in every
    ]
    found = check(written(tmp_path, lost))
    assert found.verdict == NOT_REPRODUCED
    assert "left out: hopfield-main-gpt2, hopfield, seed 2." in found.sentence
    assert "not trained yet" not in found.sentence  # it is trained, and will not come again
    assert found.numbers["diverged, left out"] == 1
    all_lost = check(written(tmp_path, [{**cell, "status": "diverged"} for cell in every]))
    assert all_lost.verdict == SCALE


@pytest.mark.parametrize(
    ("id", "artefact", "number"),
    [
        ("hopfield-probe", "hopfield-probe", "accuracy"),
        ("hopfield-fig5-12-trained", "hopfield-similarity-vit", "cosine_aligned"),
        ("hopfield-fig13-20-trained", "hopfield-entropy-vit", "entropy_mean"),
    ],
)
def test_the_audit_and_the_results_page_tell_the_same_difference(id, artefact, number):
    """From the cells of the repository: one number, one interval, with the same correction."""
    run = AuditRun("smallest")
    on_page = ArtefactCells(ARTEFACTS[artefact], ARTEFACTS[artefact].all_cells("laptop"), Store(run.cells))
    assert f": {against(on_page, number, 'self-attention')['hopfield']}, " in CLAIMS[id].check(run).sentence


READING = "hopfield-main-gpt2"  # the claim
STREAM, NORMED, REPLACE = (f"hopfield-{skip}" for skip in ("stream", "normed", "replace"))


def at_rates(levels, rates=(1.0, 4.0), best=4.0, seeds=3):
    """Seed 0 of each method at every rate, more seeds at the best alone, at which the level is reached."""
    return [
        {
            **{"artefact": "hopfield-readings-gpt2", "method": method, "label": f"{method}-rate-{rate:g}"},
            **{"seed": seed, "settings": {"learning_rate": rate, "budget": "some"}},
            "numbers": {"perplexity": level + 0.02 * seed + 10.0 * (rate != best)},
        }
        for method, level in levels.items()
        for rate in rates
        for seed in range(seeds if rate == best else 1)
    ]


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        ({STREAM: 15.0, NORMED: 25.0, REPLACE: 25.0}, HOLDS),
        ({STREAM: 25.0, NORMED: 25.0, REPLACE: 20.0}, NOT_REPRODUCED),
    ],
)
def test_one_reading_of_the_skip_is_enough(tmp_path, levels, verdict):
    found = CLAIMS[READING].check(written(tmp_path, at_rates({"self-attention": 20.0} | levels)))
    assert found.verdict == verdict
    assert f"{STREAM}: {levels[STREAM] - 20.0:+.3g} (" in found.sentence  # of the best rate, and not of all rates
    assert "with Holm's correction for 3 readings" in found.sentence


def test_a_reading_whose_seeds_diverged_leaves_it_open(tmp_path):
    """The other two oppose the claim, and the third might have been as claimed."""
    levels = {"self-attention": 20.0, STREAM: 25.0, NORMED: 25.0, REPLACE: 15.0}
    cells = at_rates(levels)
    lost = [{**cell, "status": "diverged"} if cell["method"] == REPLACE and cell["seed"] else cell for cell in cells]
    found = CLAIMS[READING].check(written(tmp_path, lost))
    assert found.verdict == SCALE
    assert f"{REPLACE}: fewer than two seeds finished" in found.sentence
    assert CLAIMS[READING].check(written(tmp_path, cells)).verdict == HOLDS


def test_cells_of_different_budgets_are_not_compared(tmp_path):
    """Those of the plan decide, here with one reading that is as claimed; the paper's own would oppose it."""
    store, artefact = Store(tmp_path), ARTEFACTS["hopfield-readings-gpt2"]
    levels = {"self-attention": 20.0, STREAM: 15.0, NORMED: 25.0, REPLACE: 25.0}
    for _ in range(2):  # the rates, then the seeds that they ask for
        for cell in artefact.all_cells("laptop", store=store):
            level = levels[cell.method] + 0.02 * cell.seed + 10.0 * (cell.resolved().learning_rate != 4e-3)
            record = {"artefact": artefact.id, "label": cell.label, "method": cell.method, "seed": cell.seed}
            record |= {"settings": cell.settings, "definition": cell.definition, "status": "finished"}
            store.write(cell, record | {"numbers": {"eval_loss": level, "perplexity": level}}, None)
    run = AuditRun("smallest", cells=tmp_path)
    assert CLAIMS[READING].check(run).verdict == HOLDS
    large = at_rates({"self-attention": 10.0, STREAM: 12.0, NORMED: 12.0, REPLACE: 12.0}, seeds=5)
    for number, cell in enumerate(large):
        cell["settings"]["budget"] = "paper"
        (tmp_path / f"paper-{number}.json").write_text(json.dumps(cell), encoding="utf-8")
    assert CLAIMS[READING].check(run).verdict == HOLDS


def test_a_rate_that_is_still_sought_decides_nothing(tmp_path):
    found = CLAIMS[READING].check(written(tmp_path, at_rates({"self-attention": 20.0, STREAM: 15.0}, seeds=1)))
    assert found.verdict == SCALE
    assert "too few to tell" in found.sentence


def test_seeds_that_finished_rates_ask_for_are_waited_for(tmp_path):
    """In the store of a training: all rates are there, the seeds at the best one are not."""
    artefact, store = ARTEFACTS["hopfield-readings-gpt2"], Store(tmp_path)
    for cell in artefact.all_cells("laptop"):
        loss = abs(cell.resolved().learning_rate - 4e-3)
        record = {"artefact": artefact.id, "label": cell.label, "method": cell.method, "seed": cell.seed}
        record |= {"settings": cell.settings, "definition": cell.definition, "status": "finished"}
        store.write(cell, record | {"numbers": {"eval_loss": loss, "perplexity": 20.0}}, None)
        if cell.label.startswith("self-attention-rate-0.001"):
            early = CLAIMS[READING].check(AuditRun("smallest", cells=tmp_path))  # the plan is not kept from here on
            assert "28 planned" not in early.sentence
    found = CLAIMS[READING].check(AuditRun("smallest", cells=tmp_path))
    assert found.verdict == PENDING
    assert "8 of 28 planned cells are not trained yet" in found.sentence


@pytest.mark.parametrize(("model", "number"), [("gpt2", "perplexity"), ("vit", "accuracy")])
def test_the_audit_and_the_results_page_tell_the_same_of_each_reading(model, number):
    """From the cells of the repository: the audit's intervals stand in the sentence of the page."""
    artefact, run = ARTEFACTS[f"hopfield-readings-{LONGEST[model]}"], AuditRun("smallest")
    store = Store(run.cells)
    on_page = artefact.result(ArtefactCells(artefact, artefact.all_cells("laptop", store=store), store)).finding
    found = CLAIMS[f"hopfield-main-{model}"].check(run)
    gaps = [shown for name, shown in found.numbers.items() if str(name).endswith("each at its own rate")]
    assert len(gaps) == 3
    assert all(f" {gap}, " in on_page for gap in gaps)


SCALE_CLAIM, ENTROPY_CLAIM = "localization-kappa2-scale", "localization-fig6-entropy"


def penalised(artefact, number, without, strongest, spread=0.001):
    """Three seeds with kappa_2 = 0 and with kappa_2 = 1."""
    return [
        {
            **{"artefact": artefact, "method": method, "label": method, "seed": seed},
            "settings": {"kappa_scale": 100.0, "kappa_mean": kappa, "budget": "some"},
            "numbers": {number: level * (1.0 + spread * seed)},
        }
        for method, kappa, level in (("scale-only", 0.0, without), ("locater", 1.0, strongest))
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("update", "tokens", "verdict"),
    [(12.0, 8.0, HOLDS), (8.0, 12.0, HOLDS), (12.0, 12.0, NOT_REPRODUCED), (12.0, None, PENDING), (8.0, None, PENDING)],
)
def test_one_normalisation_of_the_penalty_is_enough(tmp_path, update, tokens, verdict):
    """A scale of 10 without kappa_2, which should shrink; None: nothing is trained in that reading."""
    levels = {"localization-fig6": update, "localization-fig6-tokens": tokens}
    cells = [penalised(id, "qk_scale", 10.0, level) for id, level in levels.items() if level is not None]
    found = CLAIMS[SCALE_CLAIM].check(written(tmp_path, *cells))
    assert found.verdict == verdict
    assert "penalty beside the mean loss: " in found.sentence
    assert "penalty beside the summed loss: " in found.sentence


def test_both_normalisations_are_one_family(tmp_path):
    """A difference that one reading would decide by itself, and that is undecided beside the other."""
    ids = ("localization-fig6", "localization-fig6-tokens")
    alone = penalised(ids[0], "entropy_mean", 10.0, 10.5, spread=0.02)
    run = written(tmp_path, alone, penalised(ids[1], "entropy_mean", 10.0, 10.0, spread=0.02))
    found = CLAIMS[ENTROPY_CLAIM].check(run)
    assert "with Holm's correction for 2 comparisons (numbers and readings)" in found.sentence
    by_itself = compare(run, ids[:1], "entropy_mean", "locater", "scale-only", toward(1), only={"kappa_mean": 1.0})
    assert by_itself.verdict == HOLDS
    assert found.verdict == SCALE


def test_one_pair_is_enough_where_some_is_claimed(tmp_path):
    def accuracy(good):
        return lambda cell: 50.0 if cell.method == "self-attention" else good if cell.own["alpha"] == 1.0 else 45.0

    claim = CLAIMS[ABLATION]
    for good, verdict in ((60.0, HOLDS), (45.0, NOT_REPRODUCED)):
        found = claim.check(written(tmp_path, more_seeds(planned(ABLATION, "accuracy", accuracy(good)))))
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
    assert CLAIMS[ABLATION].check(written(tmp_path, plain, pairs)).verdict == SCALE


@pytest.mark.parametrize(
    ("plain", "ours", "verdict"),
    [
        (0.5, 0.04, HOLDS),
        (0.5, 0.3, CONDITION),  # it shrinks, and is not gone
        (0.5, 0.6, NOT_REPRODUCED),
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


@pytest.mark.parametrize(
    ("ours", "verdict"), [(3.9, HOLDS), (3.75, SCALE), (3.0, NOT_REPRODUCED), (5.0, NOT_REPRODUCED)]
)
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
