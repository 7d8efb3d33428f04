"""Faults are found where they are planted, harmless changes are not, and the page gets the table."""

import pytest

from uncollapse.cli import main
from uncollapse.diagnosis.usual import quantiles
from uncollapse_studies.calibration import counting
from uncollapse_studies.calibration.architectures import ARCHITECTURES
from uncollapse_studies.calibration.faults import FAULTS, HARMLESS
from uncollapse_studies.cli.calibration import BEGIN, END


@pytest.fixture
def few(monkeypatch):
    """Two architectures, one of which is measured by the weights that its attention returns; no trained models."""
    monkeypatch.setattr(counting, "ARCHITECTURES", {name: ARCHITECTURES[name] for name in ("llama", "gptj")})
    monkeypatch.delenv("UNCOLLAPSE_DATA", raising=False)


def test_the_command_counts_and_writes_the_page(few, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    arguments = ["reproduce", "calibration", "--out", str(tmp_path / "out"), "--docs", str(page)]
    assert main(arguments) == 0
    assert "| entropy collapse | 2 | 0 | 12 | 0 |" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| rank collapse | 4 | 0 | 12 | 0 |" in text
    assert (tmp_path / "out" / "cases.csv").is_file()


def test_there_are_eight_faults_and_25_architectures_and_the_quantiles_are_stored():
    assert len(FAULTS) == 8
    assert len(HARMLESS) == 3
    assert len(ARCHITECTURES) >= 25
    assert 0.0 < quantiles()["gap_mean"]["0.95"] < 21.0
