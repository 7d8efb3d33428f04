"""Faults are found where they are planted, harmless changes are not, and the page gets the table."""

import pandas as pd
import pytest

from uncollapse.cli import main
from uncollapse.diagnosis.usual import quantiles
from uncollapse_studies.calibration import counting
from uncollapse_studies.calibration.architectures import ARCHITECTURES
from uncollapse_studies.calibration.faults import FAULTS, GRADED, HARMLESS
from uncollapse_studies.cli.calibration import BEGIN, END


@pytest.fixture
def few(monkeypatch):
    """Two architectures, one of which is measured by the weights that its attention returns; no trained models."""
    monkeypatch.setattr(counting, "ARCHITECTURES", {name: ARCHITECTURES[name] for name in ("llama", "gptj")})
    monkeypatch.delenv("UNCOLLAPSE_DATA", raising=False)


def test_the_command_counts_and_writes_the_page(few, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nan earlier table\n{END}\n\nafter\n")
    arguments = ["reproduce", "calibration", "--out", str(tmp_path / "out"), "--docs", str(page)]
    assert main(arguments) == 0
    assert "| entropy collapse | 0 of 1 | 0 of 1 | 0 of 8 | 0 of 8 |" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "an earlier table" not in text
    assert "| rank collapse | 0 of 2 | 0 of 2 | 0 of 8 | 0 of 8 |" in text
    tables = {name: pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("cases", "margins", "graded")}
    assert tables["margins"]["between"].all()
    assert (tables["margins"]["faulty_margin"] > 1.0).all()
    found = tables["graded"].groupby("fault")["held out"].agg(list)
    assert found["queries of one layer"][0] == "0 of 1"  # ten times next to nothing is nothing
    assert {faults[-1] for faults in found} == {"1 of 1"}
    assert set(tables["cases"].groupby("model")["part"].first()) == {"seen", "held out"}


def test_there_are_eight_faults_and_25_architectures_and_the_quantiles_are_stored():
    assert len(FAULTS) + len(GRADED) == 8
    assert len(HARMLESS) == 4
    assert len(ARCHITECTURES) >= 25
    assert 0.0 < quantiles()["gap_mean"]["0.95"] < 21.0
