"""The audit as a whole: complete, every verdict computed, every verdict turned by a change."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from uncollapse.reproduction.claims.audit import audit, code, counts, how, row
from uncollapse.reproduction.claims.cells import cells, compare, made_up
from uncollapse.reproduction.claims.claim import CONDITION, FAILS, HOLDS, PENDING, SCALE, Run
from uncollapse.reproduction.claims.registry import claims

ROOT = Path(__file__).resolve().parents[3]
CLAIMS = claims()
MONTE_CARLO = [id for id, claim in CLAIMS.items() if claim.monte_carlo]
QUICK = Run("smallest", cells=Path("no/such/folder"))

# What must be in, whatever else is: the equations, lemmas, tables and figures that the papers number or assert.
REQUIRED = [
    "hopfield-eq6-hoelder",
    "hopfield-eq15-recursion",
    "hopfield-eq25-elementwise",
    "hopfield-eq27-28-absolute",
    "hopfield-eq31-columns",
    "hopfield-eq33-composite",
    "hopfield-eq34-span",
    "hopfield-lemmaD1",
    "hopfield-lemmaD1-centre",
    "hopfield-lemmaD1-assumption",
    "hopfield-lemmaD2",
    "hopfield-eq7-triangle",
    "hopfield-theoremD3-exponents",
    "hopfield-theoremD3-factor",
    "hopfield-D3-like-a-skip",
    "hopfield-D1-skip-extension",
    "hopfield-table1-attention",
    "hopfield-table1-mitigates",
    "hopfield-abstract-hidden-state",
    "hopfield-F1-adiabatic",
    "hopfield-F1-rho-one",
    "hopfield-F3-feedforward",
    "hopfield-eq60-central-visible",
    "hopfield-eq61-central-hidden",
    "hopfield-ablation-printed",
    "hopfield-probe-printed",
    "hopfield-vit-printed",
    "hopfield-skipfree-printed",
    "hopfield-main-gpt2",
    "hopfield-main-vit",
    "hopfield-ablation",
    "hopfield-skipfree",
    "hopfield-probe",
    "hopfield-imagenet",
    "hopfield-llama",
    "hopfield-fig4-peak",
    "hopfield-fig4-trained",
    "hopfield-fig13-20-trained",
    "hopfield-fig2-rank",
    "hopfield-abstract-hidden-trained",
    "hopfield-eq17-leading",
    "hopfield-eq17-power",
    "hopfield-overhead",
    "hopfield-F4-recurrent",
    "localization-rho-uniform",
    "localization-gradient-contributes",
    "localization-small-r",
    "localization-A1-localises",
    "localization-sigma-fixed",
    "localization-phases",
    "localization-fig6-entropy-throughout",
    "localization-fig6-localises",
    "localization-fig7-uniform",
    "localization-eq1-rows",
    "localization-eq3",
    "localization-eq4-dominates",
    "localization-summands",
    "localization-lemma1-mean",
    "localization-lemma1-variance",
    "localization-proof1-b2",
    "localization-lemma1-symmetrise",
    "localization-eq5",
    "localization-eq6",
    "localization-eq6-order-of-limits",
    "localization-gaussian",
    "localization-lemma2-1",
    "localization-lemma2-2",
    "localization-lemma2-3",
    "localization-lemma2-3-derivative",
    "localization-lemma2-3-bound",
    "localization-lemma2-4",
    "localization-fig2-caption",
    "localization-fig3-eta",
    "localization-fig3-width",
    "localization-eq7-first",
    "localization-eq7-second",
    "localization-eq7-third",
    "localization-eq8",
    "localization-eq9-bound",
    "localization-eq9-unimodal",
    "localization-eq9-temperature",
    "localization-eq10-first",
    "localization-eq10-second",
    "localization-eq10-ends",
    "localization-A2-entropy",
    "localization-A2-expressivity",
    "localization-fig5-localises",
    "localization-gradient1",
    "localization-gradient2",
    "localization-gradient3",
    "localization-gradient4",
    "localization-locater-mean",
    "localization-locater-localises",
    "localization-locater-scale",
    "localization-sec8-maximising",
    "localization-spectrum-words",
    "localization-remark2-selector",
    "localization-rho-is-attention",
    "localization-piecewise-approximates",
    "localization-eq11",
    "localization-eq12",
    "localization-eq13",
    "localization-eq14",
    "localization-eq15",
    "localization-eq16",
    "localization-eq17",
    "localization-eq18",
    "localization-eq19-21",
    "localization-eq22",
    "localization-B1-lines",
    "localization-B2-order19",
    "localization-B2-order20",
    "localization-B2-order21",
    "localization-B2-sharp",
    "localization-B2-cauchy-schwarz",
    "localization-dong-norm",
    "localization-fig6-perplexity",
    "localization-fig7-stripes",
    "localization-fig8-scale",
    "localization-fig9-scale",
    "localization-fig10-scale",
    "localization-fig11-scale",
    "localization-fig12-scale",
]


def committed() -> dict:
    return json.loads((ROOT / "results/claims.json").read_text(encoding="utf-8"))


VERDICTS = {row["id"]: row["verdict"] for row in committed()["claims"]}


def test_every_required_statement_is_in():
    assert set(REQUIRED) <= set(CLAIMS)


@pytest.mark.parametrize("id", CLAIMS)
def test_a_claim_says_all_that_it_must(id):
    claim = CLAIMS[id]
    assert claim.id == id
    assert re.fullmatch(r"(hopfield|localization)-[A-Za-z0-9-]+", id)  # an anchor of the page
    for text in (claim.place, claim.statement, claim.consequence, claim.mutation.says):
        assert text.strip()
    assert claim.statement.endswith(".")
    assert claim.mutation.changes or claim.mutation.cells
    assert re.search(r"Holds if|It cannot be checked if", how(claim)), "say from which number on it counts as holding"
    assert (ROOT / str(code(claim)["file"])).is_file()


@pytest.mark.parametrize("id", CLAIMS)
def test_a_change_turns_the_verdict(id, tmp_path):
    """As printed, the verdict is the committed one also at the smallest size; changed, it is another."""
    claim = CLAIMS[id]
    found = claim.check(QUICK)
    assert found.verdict == VERDICTS[id]
    assert found.sentence
    assert found.numbers
    assert claim.monte_carlo == (found.standard_error is not None)
    if found.verdict in (FAILS, CONDITION):
        assert claim.corrected, "a statement that does not hold as printed needs its right form"
    for number, cell in enumerate(claim.mutation.cells):
        (tmp_path / f"{number}.json").write_text(json.dumps(cell), encoding="utf-8")
    run = replace(QUICK, cells=tmp_path) if claim.mutation.cells else QUICK
    changed = claim.check(run, **claim.mutation.changes)
    assert changed.verdict == claim.mutation.verdict
    assert changed.verdict != found.verdict


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("id", MONTE_CARLO)
def test_monte_carlo_verdicts_hold_for_other_seeds(id, seed):
    claim = CLAIMS[id]
    run = replace(QUICK, seed=seed)
    assert claim.check(run).verdict == VERDICTS[id]
    assert claim.check(run, **claim.mutation.changes).verdict == claim.mutation.verdict


def test_what_is_committed_is_of_these_claims():
    rows = {row["id"]: row for row in committed()["claims"]}
    assert list(rows) == list(CLAIMS)
    assert committed()["size"] == "full"
    assert committed()["counts"] == counts(rows.values())
    for id, claim in CLAIMS.items():
        for name in ("place", "statement", "consequence", "corrected"):
            assert rows[id][name] == getattr(claim, name), f"{id}: run `uncollapse reproduce claims` again"
        assert rows[id]["check"]["file"] == code(claim)["file"]


def test_a_crash_is_recorded_as_a_bug_and_does_not_stop_the_others():
    def broken(run):
        raise ZeroDivisionError("of our own making")

    good = CLAIMS["localization-fig3-eta"]
    first, second = audit([replace(good, check=broken), good], QUICK)
    assert first["verdict"] == "error"
    assert "bug" in first["evidence"]
    assert "of our own making" in first["evidence"]
    assert second["verdict"] == FAILS


def test_numbers_of_a_row_are_plain():
    claim = CLAIMS["localization-lemma1-variance"]
    assert json.loads(json.dumps(row(claim, claim.check(QUICK), 0.1)))["standard_error"] > 0


def written(folder: Path, *groups) -> Run:
    for number, cell in enumerate(cell for group in groups for cell in group):
        (folder / f"{number}.json").write_text(json.dumps(cell), encoding="utf-8")
    return replace(QUICK, cells=folder)


def test_cells_decide_and_their_absence_is_pending(tmp_path):
    claim = CLAIMS["hopfield-main-gpt2"]
    assert claim.check(QUICK).verdict == PENDING
    worse = made_up("hopfield-main-gpt2", "perplexity", {"self-attention": 20.0, "hopfield": 25.0})
    assert claim.check(written(tmp_path, worse)).verdict == FAILS


def test_one_seed_decides_nothing(tmp_path):
    one = [cell for cell in CLAIMS["hopfield-main-gpt2"].mutation.cells if cell["seed"] == 0]
    assert CLAIMS["hopfield-main-gpt2"].check(written(tmp_path, one)).verdict == PENDING


def test_an_interval_that_allows_either_sign_decides_nothing(tmp_path):
    claim = CLAIMS["hopfield-main-gpt2"]
    same = made_up("hopfield-main-gpt2", "perplexity", {"self-attention": 20.0, "hopfield": 20.0})
    found = claim.check(written(tmp_path, same))
    assert found.verdict == PENDING
    assert "undecided in 1" in found.sentence


def test_one_pair_is_enough_where_some_is_claimed(tmp_path):
    good = made_up("hopfield-ablation", "accuracy", {"hopfield": 60.0}, [{"alpha": 0.5}])
    bad = made_up("hopfield-ablation", "accuracy", {"self-attention": 50.0}) + made_up(
        "hopfield-ablation", "accuracy", {"hopfield": 40.0}, [{"alpha": 1.0}]
    )
    assert CLAIMS["hopfield-ablation"].check(written(tmp_path, good, bad)).verdict == HOLDS


def test_a_group_that_only_shrinks_has_not_disappeared(tmp_path):
    cells = made_up("hopfield-similarity-gpt2", "cosine_aligned", {"self-attention": 0.5, "hopfield": 0.3})
    assert CLAIMS["hopfield-fig4-trained"].check(written(tmp_path, cells)).verdict == CONDITION


def test_kappa_is_compared_at_one_kappa_scale(tmp_path):
    """The figures vary kappa_2 at kappa_1 = 100; networks without penalty are no part of that line."""
    claim = CLAIMS["localization-fig6-scale"]
    plain = made_up("localization-fig6", "qk_scale", {"plain": 1e6})
    assert claim.check(written(tmp_path, claim.mutation.cells, plain)).verdict == HOLDS
    rising = [{**cell, "numbers": {"qk_scale": 1.0 / cell["numbers"]["qk_scale"]}} for cell in claim.mutation.cells]
    assert claim.check(written(tmp_path, rising)).verdict == FAILS


def test_tiny_cells_decide_nothing(tmp_path):
    claim = CLAIMS["hopfield-main-gpt2"]
    tiny = [{**cell, "settings": {"scale": "tiny"}} for cell in claim.mutation.cells]
    assert claim.check(written(tmp_path, tiny)).verdict == PENDING


def test_settings_are_compared_with_their_own_kind(tmp_path):
    """Better in one setting and worse in the other; the method's own alpha does not set cells apart."""
    good = made_up("a", "accuracy", {"plain": 50.0}, [{"model": "S"}]) + made_up(
        "a", "accuracy", {"ours": 60.0}, [{"model": "S", "alpha": 0.5}]
    )
    bad = made_up("a", "accuracy", {"plain": 50.0, "ours": 40.0}, [{"model": "L"}])
    other = made_up("b", "accuracy", {"plain": 50.0})
    found = compare(written(tmp_path, good, bad, other), ["a"], "accuracy", "ours", "plain", lambda low, high: low > 0)
    assert found.verdict == CONDITION
    assert len(found.numbers) == 2


def test_a_star_stands_for_all_that_begin_like_it(tmp_path):
    run = written(tmp_path, made_up("x-one", "n", {"m": 1.0}), made_up("x-two", "n", {"m": 1.0}))
    assert len(cells("x-*", run.cells)) == 6
    assert len(cells("x-one", run.cells)) == 3


def test_verdicts_of_the_audit_are_of_all_kinds():
    assert {HOLDS, CONDITION, FAILS, SCALE} <= set(committed()["counts"])
