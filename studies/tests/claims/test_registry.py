"""The audit as a whole: complete, every verdict computed, every verdict turned by a change."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from made_cells import written

from uncollapse_studies.audit.audit import audit, code, counts, how, row
from uncollapse_studies.audit.claim import (
    CONDITION,
    FAILS,
    HOLDS,
    SCALE,
    AuditRun,
    Claim,
    ClaimVerdict,
    Evidence,
    Mutation,
)
from uncollapse_studies.audit.registry import claims

ROOT = Path(__file__).resolve().parents[3]
CLAIMS = claims()
MONTE_CARLO = [id for id, claim in CLAIMS.items() if claim.monte_carlo]
TRAINED = [id for id, claim in CLAIMS.items() if claim.artefacts]  # decided by the cells of trained networks
QUICK = AuditRun("smallest", cells=ROOT / "studies/results/cells")
AGAIN = "run `uncollapse reproduce claims` again and commit what it writes: code, cells and results are out of step"

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
    return json.loads((ROOT / "studies/results/claims.json").read_text(encoding="utf-8"))


VERDICTS = {row["id"]: row["verdict"] for row in committed()["claims"]}


def test_every_required_statement_is_in():
    assert set(REQUIRED) <= set(CLAIMS)


@pytest.mark.parametrize("id", CLAIMS)
def test_a_claim_says_all_that_it_must(id):
    claim = CLAIMS[id]
    assert claim.id == id
    assert re.fullmatch(r"(hopfield|localization)-[A-Za-z0-9-]+", id)  # an anchor of the page
    consequences = [claim.for_user(verdict) for verdict in get_args(ClaimVerdict)]
    for text in (claim.place, claim.statement, *consequences, claim.mutation.says):
        assert text.strip()
    assert claim.statement.endswith(".")
    assert claim.mutation.changes or claim.mutation.cells
    assert re.search(r"Holds if|It cannot be checked if", how(claim)), "say from which number on it counts as holding"
    assert (ROOT / str(code(claim)["file"])).is_file()


def changed(claim: Claim, mutation: Mutation, folder: Path) -> Evidence:
    run = written(folder, mutation.cells) if mutation.cells else QUICK
    return claim.check(run, **mutation.changes)


@pytest.mark.parametrize("id", CLAIMS)
def test_a_change_turns_the_verdict(id, tmp_path):
    """As printed, the verdict is the committed one also at the smallest size; changed, it is another."""
    claim = CLAIMS[id]
    found = claim.check(QUICK)
    assert found.verdict == VERDICTS.get(id), AGAIN
    assert found.sentence
    assert found.numbers
    assert claim.monte_carlo == (found.standard_error is not None)
    if found.verdict in (FAILS, CONDITION) and id not in TRAINED:
        assert claim.corrected, "a statement that does not hold as printed needs its right form"
    mutation = claim.turn(found.verdict)
    assert mutation.verdict != found.verdict
    assert changed(claim, mutation, tmp_path).verdict == mutation.verdict


@pytest.mark.parametrize("id", TRAINED)
def test_made_up_cells_that_agree_or_oppose_decide_whatever_the_real_ones_say(id, tmp_path):
    claim = CLAIMS[id]
    assert changed(claim, claim.mutation, tmp_path).verdict == claim.turn(FAILS).verdict == HOLDS
    assert changed(claim, claim.opposite, tmp_path).verdict == claim.turn(HOLDS).verdict == FAILS


@pytest.mark.parametrize("id", CLAIMS)
def test_only_statements_that_training_decides_are_left_without_a_judgement(id):
    """What a small network shows is no right form of a statement about a large one, nor does it judge a conclusion."""
    claim = CLAIMS[id]
    if id in TRAINED:
        assert (claim.corrected, claim.survives) == ("", None)
        assert len({claim.for_user(verdict) for verdict in get_args(ClaimVerdict)}) == len(get_args(ClaimVerdict))
    else:
        assert isinstance(claim.survives, bool)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("id", MONTE_CARLO)
def test_monte_carlo_verdicts_hold_for_other_seeds(id, seed):
    claim = CLAIMS[id]
    run = replace(QUICK, seed=seed)
    assert claim.check(run).verdict == VERDICTS.get(id), AGAIN
    assert claim.check(run, **claim.mutation.changes).verdict == claim.mutation.verdict


def test_what_is_committed_is_of_these_claims():
    rows = {row["id"]: row for row in committed()["claims"]}
    assert list(rows) == list(CLAIMS), AGAIN
    assert committed()["size"] == "full"
    assert committed()["counts"] == counts(rows.values())
    for id, claim in CLAIMS.items():
        found, verdict = rows[id], rows[id]["verdict"]
        for name in ("place", "statement", "corrected"):
            assert found[name] == getattr(claim, name), f"{id}: {AGAIN}"
        assert found["consequence"] == claim.for_user(verdict), f"{id}: {AGAIN}"
        assert found["survives"] == (claim.survives if verdict == FAILS else None), f"{id}: {AGAIN}"
        assert found["changed"]["verdict"] != verdict, f"{id}: {AGAIN}"
        assert found["check"]["file"] == code(claim)["file"]


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


def test_verdicts_of_the_audit_are_of_all_kinds():
    assert {HOLDS, CONDITION, FAILS, SCALE} <= set(committed()["counts"])
