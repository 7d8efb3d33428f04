"""What bounds are worth: the table over sizes, and the copy of it in docs/theory.md."""

import json
from pathlib import Path

import pandas as pd

from uncollapse_studies.hopfield.contraction import CURVES, NetworkSize, contraction_table, size_summary
from uncollapse_studies.results_page import markdown

ROOT = Path(__file__).resolve().parents[2]


def test_the_bound_from_the_attention_follows_the_residual_and_that_from_the_weights_does_not():
    table = contraction_table((NetworkSize(width=64, tokens=24, init="xavier", depth=5),), 1, lambda: None)
    wide = table.pivot(index=["network", "depth"], columns="curve", values="mean")
    left, near, far = (wide[curve] for curve in CURVES)
    assert (left <= near + 1e-9).all()
    assert (left <= far + 1e-9).all()
    assert (near - left <= wide.index.get_level_values("depth")).all()  # powers of ten: within ten times per layer
    assert (far > 0.0).all()  # above the residual of the input in every layer
    assert len(size_summary(table)) == 1


def test_the_page_has_the_table_that_the_command_writes():
    record = json.loads((ROOT / "studies/results/hopfield-contraction/hopfield-contraction.json").read_text())
    table = markdown(pd.DataFrame(record["main"]["data"], columns=record["main"]["columns"]))
    assert table in (ROOT / "docs/theory.md").read_text(encoding="utf-8"), (
        "copy the table of `uncollapse reproduce hopfield-contraction` into docs/theory.md"
    )
