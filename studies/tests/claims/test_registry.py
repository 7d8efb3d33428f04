"""The audit as a whole: complete, every verdict computed, every verdict turned by a change."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from made_cells import written

from uncollapse_studies.audit.audit import audit, code, how, row
from uncollapse_studies.audit.claim import (
    CONDITION,
    FAILS,
    HOLDS,
    NOT_REPRODUCED,
    SCALE,
    AuditRun,
    Claim,
    ClaimVerdict,
    Evidence,
    Mutation,
)
from uncollapse_studies.audit.headline import counts, headline, roots
from uncollapse_studies.audit.registry import claims
from uncollapse_studies.audit.roots import ROOTS
from uncollapse_studies.audit.withdrawn import WITHDRAWN

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
    "localization-B2-cauchy-schwarz",
    "localization-dong-norm",
    "localization-fig6-perplexity",
    "localization-fig7-stripes",
    "localization-kappa2-scale",
    "localization-fig8-entropy",
    "localization-fig12-perplexity",
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
    for text in (claim.place, claim.statement, *consequences, claim.mutation.says, claim.changes_our_mind):
        assert text.strip()
    assert not claim.root or claim.root in ROOTS
    assert (claim.perturbation is None) == bool(claim.no_perturbation), "a change by 20 %, or why there is none"
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
    assert found.verdict not in ((FAILS,) if id in TRAINED else (NOT_REPRODUCED,))
    if found.verdict in (FAILS, NOT_REPRODUCED):
        assert claim.root, "a statement that fails has a root"
    if found.verdict in (FAILS, CONDITION) and id not in TRAINED:
        assert claim.corrected, "a statement that does not hold as printed needs its right form"
    mutation = claim.turn(found.verdict)
    assert mutation.verdict != found.verdict
    assert changed(claim, mutation, tmp_path).verdict == mutation.verdict


@pytest.mark.parametrize("id", [id for id, claim in CLAIMS.items() if claim.perturbation])
def test_the_right_form_holds_and_no_longer_does_when_it_is_changed_by_a_fifth(id):
    claim = CLAIMS[id]
    assert claim.check(QUICK, **claim.perturbation.changes(1.0)).verdict == HOLDS
    for factor in claim.perturbation.factors:
        assert 0.8 <= factor <= 1.2
        assert claim.check(QUICK, **claim.perturbation.changes(factor)).verdict != HOLDS


@pytest.mark.parametrize("id", TRAINED)
def test_made_up_cells_that_agree_or_oppose_decide_whatever_the_real_ones_say(id, tmp_path):
    claim = CLAIMS[id]
    assert changed(claim, claim.mutation, tmp_path).verdict == claim.turn(NOT_REPRODUCED).verdict == HOLDS
    assert changed(claim, claim.opposite, tmp_path).verdict == claim.turn(HOLDS).verdict == NOT_REPRODUCED
    assert ROOTS[claim.root].kind not in ("repairable", "conclusion", "misprint")


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


def test_roots_agree_with_the_judgement_of_their_claims():
    """What can be repaired leaves the conclusion standing; of the others at least one statement does not."""
    for root in ROOTS.values():
        own = [claim for claim in CLAIMS.values() if claim.root == root.id]
        assert own, f"no claim has the root {root.id}"
        assert {claim.paper for claim in own} == {root.id.split("-")[0]}
        if root.kind in ("repairable", "misprint"):
            assert all(claim.survives for claim in own), root.id
        if root.kind == "conclusion":
            assert not all(claim.survives for claim in own), root.id


def test_what_is_withdrawn_is_not_judged():
    assert not set(WITHDRAWN) & set(CLAIMS)


def test_readings_other_statements_and_small_networks_are_no_failures_of_a_paper():
    def entry(id, root, verdict):
        return row(replace(CLAIMS[id], root=root), Evidence(verdict, "", {}), 0.0)

    rows = [
        entry("localization-eq6", "localization-lemma1-variance", FAILS),
        entry("localization-lemma1-variance", "localization-lemma1-variance", FAILS),
        entry("localization-eq9-bound", "localization-eq9", FAILS),
        entry("localization-fig3-eta", "localization-fig3-eta", FAILS),
        entry("localization-kappa2-scale", "localization-kappa2-scale", FAILS),
        entry("localization-kappa", "localization-kappa-normalisation", FAILS),
        entry("localization-fig6-entropy", "localization-trained-entropy", NOT_REPRODUCED),
    ]
    assert counts(rows)[FAILS] == 4
    assert headline(rows).startswith("Of 7 entries 4 fail as printed, for 2 distinct reasons of substance and one")
    by_kind = {root["kind"]: root["claims"] for root in roots(rows)}
    assert by_kind["repairable"] == ["localization-eq6", "localization-lemma1-variance"]
    assert by_kind["trained"] == ["localization-fig6-entropy"]


def test_what_is_committed_is_of_these_claims():
    rows = {row["id"]: row for row in committed()["claims"]}
    assert list(rows) == list(CLAIMS), AGAIN
    assert committed()["size"] == "full"
    assert committed()["counts"] == counts(rows.values())
    assert committed()["headline"] == headline(list(rows.values()))
    assert committed()["roots"] == roots(rows.values())
    assert committed()["withdrawn"] == WITHDRAWN
    for id, claim in CLAIMS.items():
        found, verdict = rows[id], rows[id]["verdict"]
        for name in ("place", "statement", "corrected", "quote", "unverified", "root", "changes_our_mind"):
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
