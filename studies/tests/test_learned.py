"""Networks that learn their coefficients: cells, and what is said about them."""

import pandas as pd
import pytest

from uncollapse_studies.artefact import NO_CLAIM, ArtefactCells
from uncollapse_studies.artefacts import ARTEFACTS
from uncollapse_studies.cells.store import Store

ID = "hopfield-learned-gpt2"


@pytest.mark.parametrize("model", ["gpt2", "vit"])
def test_the_cells_learn_in_the_default_reading_beside_the_central_self_attention(model):
    cells = ARTEFACTS[f"hopfield-learned-{model}"].all_cells("laptop")
    assert len(cells) == 2 * 3
    assert {cell.method for cell in cells if cell.resolved().learn_alpha} == {"learned-from-half"}
    central = {cell.definition for cell in ARTEFACTS[f"hopfield-main-{model}"].all_cells("laptop")}
    assert {cell.method for cell in cells if cell.definition in central} == {"self-attention"}
    assert {cell.resolved().skip for cell in cells if cell.method != "self-attention"} == {"stream"}


def test_the_values_are_told_by_layer(tmp_path):
    artefact, store = ARTEFACTS[ID], Store(tmp_path)
    cells = artefact.all_cells("laptop")
    for cell in cells:
        numbers = {"eval_loss": 4.0 + 0.01 * cell.seed, "perplexity": 55.0 + cell.seed}
        record = {"definition": cell.definition, "status": "finished", "numbers": numbers, "curves": {}}
        tables = None
        if cell.resolved().learn_alpha:
            ends = {"alpha_hidden": [0.1, 0.3, 0.8, 0.8], "alpha": 0.4}
            record["tables"] = cell.name
            tables = {"learned": pd.DataFrame({"layer": [1, 1, 2, 2], "head": [1, 2, 1, 2], **ends})}
        store.write(cell, record | {"epochs": 2.0, "held_out_loss": "flat"}, tables)
    result = artefact.result(ArtefactCells(artefact, cells, store))
    assert result.verdict == NO_CLAIM
    assert "learned-from-half: alpha' starts at 0.5 and ends, layer by layer, at 0.20, 0.80" in result.finding
    assert result.table["mean"].tolist() == pytest.approx([0.1, 0.3, 0.8, 0.8])
    assert set(result.table["seeds"]) == {3}
    assert "mark" in str(result.chart.to_dict())
