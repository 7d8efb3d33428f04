"""docs/results.md is what the files under results/ say, and nothing else."""

from pathlib import Path

import pandas as pd
import pytest

from uncollapse.cli import main
from uncollapse.remedies.contents import UNTESTED, against
from uncollapse_studies.artefacts import ARTEFACTS
from uncollapse_studies.cells.running import CellWorkspace, run_cells
from uncollapse_studies.cells.store import Store
from uncollapse_studies.readme_tables import NOT_FINISHED, README, marks, readings_table, readme_text, remedies_table
from uncollapse_studies.results_page import PAGE, markdown, results_text
from uncollapse_studies.what_helps import PAGE as WHAT_HELPS

BEGIN, END = marks("table")
ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_generator_writes():
    assert (ROOT / PAGE).read_text(encoding="utf-8") == results_text(ROOT), "run: uncollapse reproduce results"


def test_the_table_of_the_readme_is_what_the_generator_writes():
    assert (ROOT / README).read_text(encoding="utf-8") == readme_text(ROOT), "run: uncollapse reproduce results"


def test_a_readme_without_the_marks_is_left_alone(tmp_path):
    assert readme_text(tmp_path) is None
    (tmp_path / README).write_text(f"# A title\n\n{BEGIN}\n")
    assert readme_text(tmp_path) is None
    (tmp_path / README).write_text(f"# A title\n\n{BEGIN}\nold\n{END}\nbelow\n")
    assert readme_text(tmp_path) == f"# A title\n\n{BEGIN}\n\n{remedies_table(tmp_path)}\n{END}\nbelow\n"


def test_the_comparison_of_the_readme_has_every_reading(tmp_path):
    text = readings_table(tmp_path)
    assert [line.split(" | ")[0].strip("| `") for line in text.splitlines()[2:]] == [
        *("plain attention", "stream", "normed", "replace"),
    ]
    assert text.count(NOT_FINISHED) == 8  # nothing is trained in an empty folder
    begin, end = marks("comparison")
    (tmp_path / README).write_text(f"{begin}\nold\n{end}\nbelow\n")
    assert readme_text(tmp_path) == f"{begin}\n\n{text}\n{end}\nbelow\n"


def test_the_table_of_the_readme_has_every_remedy_that_a_diagnosis_names(tmp_path):
    rows = [line.split(" | ") for line in remedies_table(tmp_path).splitlines()[2:]]
    advised = [entry.name for kind in ("entropy collapse", "rank collapse") for entry in against(kind)]
    assert sorted(row[0].strip("| `") for row in rows) == sorted(["none", *advised])
    assert {cell.strip(" |") for row in rows for cell in row[2:]} == {UNTESTED}  # nothing is trained in an empty folder


def test_every_artefact_has_a_section():
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in (PAGE, WHAT_HELPS))
    assert all(f"\n## {id}\n" in text for id in ARTEFACTS)


@pytest.mark.usefixtures("tiny_artefacts")
def test_the_command_writes_page_and_pictures(tmp_path):
    workspace = CellWorkspace(Store(tmp_path / "studies/results/cells"), tmp_path / "runs", progress=False)
    cells = ARTEFACTS["localization-fig8"].all_cells("laptop")
    run_cells(cells[:1], workspace)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "uncollapse"\n')
    assert main(["reproduce", "results", "--project", str(tmp_path)]) == 0
    text = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert "1 of 6 cells are trained." in text
    assert "Pending: 0 of" in text
    assert (tmp_path / "studies/results/figures/localization-fig8.png").stat().st_size > 1000


def test_results_needs_a_checkout(tmp_path, capsys):
    assert main(["reproduce", "results", "--project", str(tmp_path)]) == 2
    assert "is no checkout of uncollapse" in capsys.readouterr().err


def test_bars_do_not_break_a_table():
    assert markdown(pd.DataFrame({"a|b": ["1|2"]})) == "| a\\|b |\n| --- |\n| 1\\|2 |\n"
