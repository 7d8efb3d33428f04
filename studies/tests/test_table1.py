"""Appendix Table 1: its columns, what has to be equal in it, the distance that ranks choices, and the verdict."""

import numpy as np
import pandas as pd
import pytest

from uncollapse_studies.artefact import NOT_SEEN, REPRODUCED, TREND
from uncollapse_studies.hopfield.table1 import FLOOR, NEAR, aims, distances, is_cell, nearest, verdict
from uncollapse_studies.hopfield.table1_networks import BOTH, CHOICE, PLAIN, SMALLEST, distinct, ratios_table
from uncollapse_studies.printed import TABLE1

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


def test_choices_under_a_second_name_count_once(table):
    own = distinct(table)
    assert len(table[CHOICE].drop_duplicates()) == 12
    assert len(own[CHOICE].drop_duplicates()) == 8  # joint and separate differ with Xavier's rule only
    assert not own.duplicated(["depth", "rule", "alpha", "alpha_hidden", "start", "dtype", "mean", "spread"]).any()


def test_printed_ratios_below_the_rounding_of_float32_are_not_compared():
    assert [len(column) for column in aims(12).values()] == [3, 12]
    assert [len(column) for column in aims(2).values()] == [2, 2]
    assert all((column > FLOOR).all() for column in aims(12).values())


def as_printed(table, plain=1.0):
    """A table that has the printed columns, the first times `plain`, where the plain and the full network stand."""
    printed = table[(table["dtype"] == "float32") & (table["init"] == "timm")].copy()
    for pair, values, factor in zip((PLAIN, BOTH), TABLE1.values(), (plain, 1.0), strict=True):
        rows = is_cell(printed, *pair)
        printed.loc[rows, "mean"] = factor * printed.loc[rows, "depth"].map(dict(enumerate(values, start=1)))
    return printed


def test_the_printed_columns_are_at_distance_nothing(table):
    printed = as_printed(table)
    ranked = nearest(distances(printed))
    assert ranked["farther"].max() == pytest.approx(0.0)
    assert (ranked["alpha_hidden"] == 0.5).all()
    assert verdict(printed, ranked.iloc[0]) == REPRODUCED


def test_a_near_column_does_not_make_up_for_a_far_one(table):
    factor = 10 ** (1.1 * NEAR)
    off = as_printed(table, plain=factor)
    best = nearest(distances(off)).iloc[0]
    assert best["distance_second"] == pytest.approx(0.0)
    assert best["farther"] == pytest.approx(1.1 * NEAR)
    assert verdict(off, best).startswith(f"{TREND} (within a factor of {factor:.2g}")


def test_a_skip_that_keeps_tokens_no_further_apart_is_not_the_trend(table):
    off = as_printed(table, plain=1e4)
    assert verdict(off, nearest(distances(off)).iloc[0]) == NOT_SEEN
