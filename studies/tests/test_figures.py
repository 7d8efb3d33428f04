"""Every figure of the registry at its smallest size, and what its table has to show."""

import json

import numpy as np
import pandas as pd
import pytest

from uncollapse.cli import main
from uncollapse_studies.figure import FIGURES
from uncollapse_studies.hopfield.bounds import CURVES, MEASURED, BoundsSetting, bounds_table, counterexample
from uncollapse_studies.hopfield.retrieval import digit_patterns
from uncollapse_studies.localization.simulation import CORRECTED, PRINTED, SIMULATION, simulation_table
from uncollapse_studies.localization.simulation import SimulationSetting as Walks


@pytest.mark.parametrize("id", FIGURES)
def test_figure_at_its_smallest_size(id, tmp_path):
    out = tmp_path / "figure"
    assert main(["reproduce", id, "--quick", "--out", str(out), "--svg"]) == 0
    assert {file.name for file in out.iterdir()} == {f"{id}.{suffix}" for suffix in ("csv", "json", "html", "svg")}
    table = pd.read_csv(out / f"{id}.csv")
    assert len(table) > 5
    numbers = table.select_dtypes("number")
    assert not np.isinf(numbers).any(axis=None)
    assert np.isfinite(numbers).all().sum() >= 2  # what is measured, and over what; others may not apply to every row
    record = json.loads((out / f"{id}.json").read_text())
    assert record["figure"] == id
    assert record["size"] == "smallest"
    assert {"uncollapse", "torch", "numpy"} <= set(record["versions"])
    page = (out / f"{id}.html").read_text()
    assert FIGURES[id].title in page
    assert "https://cdn" not in page  # opens without a network


def test_list_names_every_figure(capsys):
    assert main(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{figure.id} " in printed and figure.title in printed for figure in FIGURES.values())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["localisation-fig4"], "there is no figure 'localisation-fig4'; did you mean localization-fig4?"),
        (["zzz"], "there is no figure 'zzz'; uncollapse reproduce list shows all."),
        ([], "say which figure"),
    ],
)
def test_unknown_figures_are_one_sentence(arguments, sentence, capsys):
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_nothing_is_overwritten_unasked(tmp_path, capsys):
    out = tmp_path / "figure"
    assert main(["reproduce", "localization-fig4", "--quick", "--out", str(out)]) == 0
    assert main(["reproduce", "localization-fig4", "--quick", "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["reproduce", "localization-fig4", "--quick", "--out", str(out), "--force"]) == 0


def test_simulation_lies_on_the_corrected_form_and_off_the_printed_one():
    table = simulation_table(Walks(width=64, tokens=20, walks=300, draws=2), lambda: None)
    wide = table[table["quantity"] == "rho"].pivot(
        index=["covariance", "mean", "scale", "theta"], columns="source", values="value"
    )
    assert (wide[CORRECTED] - wide[SIMULATION]).abs().max() < 0.08
    assert (wide[PRINTED] - wide[SIMULATION]).abs().max() > 0.3


def test_corrected_bounds_lie_above_the_residual():
    table = bounds_table(BoundsSetting(depth=5, width=16, tokens=8, seeds=2), lambda: None)
    wide = table.pivot(index=["network", "depth"], columns="curve", values="mean").dropna()
    for name in (CURVES["corrected"], CURVES["corrected_depth"]):
        assert (wide[MEASURED] <= wide[name] + 1e-9).all()
    after, printed, corrected = counterexample()
    assert printed < after <= corrected


def test_digits_are_patterns_of_length_one():
    patterns = digit_patterns()
    assert patterns.shape == (10, 64)
    np.testing.assert_allclose(np.linalg.norm(patterns, axis=1), 1.0)
