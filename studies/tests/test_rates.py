"""Remedies over learning rates: cells, the measure, and what is said about it."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from uncollapse.remedies.contents import BY_NAME
from uncollapse_studies.artefact import ArtefactCells
from uncollapse_studies.artefacts import ARTEFACTS
from uncollapse_studies.cells.remedies import PLAIN, RATES, REMEDIES
from uncollapse_studies.cells.store import Store
from uncollapse_studies.remedies.rates import all_runs, compared, evidence, summary
from uncollapse_studies.what_helps import EVIDENCE, PAGE, evidence_lines, page_text

ROOT = Path(__file__).resolve().parents[2]
ID = "remedies-rates-shakespeare"


def runs(losses, seeds=3):
    """A table of runs: the loss of each method at each rate, with a spread of 0.01 over seeds."""
    rows = [
        (name, seed, rate, loss + 0.01 * seed, 10.0, 0.5)
        for name, values in losses.items()
        for seed in range(seeds)
        for rate, loss in zip(RATES, values, strict=True)
    ]
    return pd.DataFrame(rows, columns=["label", "seed", "rate", "loss", "largest_logit", "lowest_entropy"])


STEEP = [2.0, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0]
FLAT = [2.0, 2.0, 2.1, 2.1, 2.2, 2.3, 2.5]


def test_every_remedy_is_a_method():
    assert set(REMEDIES) == {PLAIN, *BY_NAME}


def test_every_cell_resolves_and_trains_another_network():
    cells = ARTEFACTS[ID].all_cells("laptop")
    assert len(cells) == len(REMEDIES) * len(RATES) * 3 == len({cell.definition for cell in cells})


def test_a_flat_line_is_less_sensitive():
    found = compared(runs({PLAIN: STEEP, "qk_norm": FLAT}))
    assert found[PLAIN].sensitivity.mean == pytest.approx(sum(STEEP) / 7 - 2.0)
    assert found["qk_norm"].against.verdict == "lower"
    assert found["qk_norm"].loss_against.verdict == "undecided"
    assert set(summary(found)["method"]) == {PLAIN, "qk_norm"}


def test_what_costs_at_the_best_rate_is_worse_there():
    found = compared(runs({PLAIN: STEEP, "sink": [loss + 0.5 for loss in FLAT]}))
    line = evidence(found, "here")["sink"]
    assert line.startswith("rate sensitivity 0.17 against 1.14 without it (better), loss at the best rate 2.51")
    assert "(worse); here, 3 seeds" in line


def test_one_seed_is_no_evidence_and_a_missing_rate_no_finding():
    assert evidence(compared(runs({PLAIN: STEEP, "sink": FLAT}, seeds=1)), "here") == {}
    partly = runs({PLAIN: STEEP, "sink": FLAT})
    partly = partly[(partly["label"] == PLAIN) | (partly["rate"] < 1.0)]
    assert set(compared(partly)) == {PLAIN}


def test_a_run_that_diverged_counts_as_a_guess(tmp_path):
    artefact, store = ARTEFACTS[ID], Store(tmp_path)
    first, second = artefact.all_cells("laptop")[:2]
    for cell, status, numbers in ((first, "diverged", {}), (second, "finished", {"eval_loss": 9.0})):
        store.write(cell, {"definition": cell.definition, "status": status, "numbers": numbers, "curves": {}}, None)
    found = all_runs(ArtefactCells(artefact, [first, second], store))
    assert found["loss"].tolist() == [math.log(300)] * 2
    assert found["largest_logit"].tolist() == [math.inf] * 2


def test_the_page_and_the_evidence_are_those_of_the_results():
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page_text(ROOT), "run: uncollapse reproduce results"
    assert json.loads((ROOT / EVIDENCE).read_text(encoding="utf-8")) == evidence_lines(ROOT)
