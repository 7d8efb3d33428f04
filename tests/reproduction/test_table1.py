"""Appendix Table 1: its columns, what has to be equal in it, and the distance by which choices are ranked."""

import numpy as np
import pandas as pd
import pytest

from uncollapse.reproduction.hopfield_table1 import CHOICE, SMALLEST, distances, is_cell, nearest, ratios_table
from uncollapse.reproduction.printed import TABLE1

COLUMNS = "depth, rule, alpha, alpha_hidden, start, init, layernorm, projection, dtype, mean, spread, seeds"


@pytest.fixture(scope="module")
def table():
    return ratios_table(SMALLEST, lambda: None)


def test_columns_and_cells(table):
    assert list(table.columns) == COLUMNS.split(", ")
    cells = table[["rule", "alpha", "alpha_hidden", "start"]].drop_duplicates()
    assert len(cells) == 4 * 2 + 2  # the square of {0, 0.5} from both starts, RealFormer, ReViT
    assert len(table) == len(cells) * SMALLEST.depth * 3 * 2 * 2 * 2  # init, LayerNorm, projection, dtype
    assert np.isfinite(table[["mean", "spread"]]).all(axis=None)


def test_revit_is_the_hidden_state_alone_from_a_raw_start(table):
    keys = ["depth", *CHOICE, "dtype"]
    revit = table[table["rule"] == "revit"].set_index(keys)["mean"]
    hidden = table[is_cell(table, 0.0, 0.5) & (table["start"] == "raw")].set_index(keys)["mean"]
    pd.testing.assert_series_equal(revit, hidden, rtol=1e-5)  # six digits are kept


def test_joint_projections_matter_to_xavier_only(table):
    wide = table.pivot_table(
        index=["init", "layernorm", "depth", "rule", "alpha", "alpha_hidden", "start", "dtype"],
        columns="projection",
        values="mean",
    )
    equal = np.isclose(wide["joint"], wide["separate"])
    by_init = pd.Series(equal, index=wide.index).groupby("init").all()
    assert by_init.to_dict() == {"timm": True, "torch": True, "xavier": False}


def test_the_printed_columns_are_at_distance_nothing(table):
    printed = table[(table["dtype"] == "float32") & (table["init"] == "timm")].copy()
    for pair, values in zip(((0.0, 0.0), (0.5, 0.5)), TABLE1.values(), strict=True):
        rows = is_cell(printed, *pair)
        printed.loc[rows, "mean"] = printed.loc[rows, "depth"].map(dict(enumerate(values, start=1)))
    ranked = nearest(distances(printed))
    assert ranked["both"].max() == pytest.approx(0.0)
    assert (ranked["alpha_hidden"] == 0.5).all()
