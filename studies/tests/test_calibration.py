"""Faults are found where they are planted, harmless changes are not, and thresholds come out of the study."""

import json
import math
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pandas as pd
import pytest

from uncollapse.cli import main
from uncollapse.diagnosis.thresholds import CHOSEN
from uncollapse.diagnosis.verdicts import judge
from uncollapse_studies import locations
from uncollapse_studies.calibration import cases, choosing
from uncollapse_studies.calibration.architectures import ARCHITECTURES
from uncollapse_studies.calibration.cases import PARTS
from uncollapse_studies.calibration.choosing import between
from uncollapse_studies.calibration.faults import FAULTS, GRADED, HARMLESS
from uncollapse_studies.calibration.own_runs import own_runs
from uncollapse_studies.cli.calibration import BEGIN, END

STORED = locations.results() / "calibration"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "diagnose.md"


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Two architectures, one of which is measured by the weights that its attention returns; no trained models."""
    (tmp_path / "cells").mkdir()
    monkeypatch.setattr(locations, "cells", lambda: tmp_path / "cells")
    monkeypatch.setattr(cases, "ARCHITECTURES", {name: ARCHITECTURES[name] for name in ("llama", "gptj")})
    monkeypatch.setattr(choosing, "CHOSEN", replace(CHOSEN, aligned_share=0.99, residual_share=0.5))  # to be found
    monkeypatch.delenv("UNCOLLAPSE_DATA", raising=False)


def test_the_command_chooses_counts_and_writes(few, tmp_path, capsys):
    page, thresholds = tmp_path / "page.md", tmp_path / "thresholds.json"
    page.write_text(f"before\n\n{BEGIN}\nan earlier table\n{END}\n\nafter\n")
    arguments = ["--out", str(tmp_path / "out"), "--docs", str(page), "--thresholds", str(thresholds)]
    assert main(["reproduce", "calibration", *arguments]) == 0
    assert "| entropy collapse | 0 of 1 | 0 of 1 | 0 of " in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "an earlier table" not in text
    names = ("cases", "summary", "margins", "graded")
    tables = {name: pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in names}
    assert tables["summary"][["missed", "false"]].sum().sum() == 0
    assert tables["margins"]["between"].all()
    assert (tables["margins"]["faulty_margin"] > 1.0).all()
    chosen = json.loads(thresholds.read_text())["thresholds"]
    assert chosen["saturated_gap"] == CHOSEN.saturated_gap  # none of the two has a healthy head of low entropy
    left = tables["margins"].query("quantity.str.startswith('what is left') and part == 'seen'").iloc[0]
    assert chosen["residual_share"] == float(f"{math.sqrt(left['healthy'] * left['faulty']):.2g}")
    found = tables["graded"].groupby("fault")["held out"].agg(list)
    assert found["queries of one layer"][0] == "0 of 1"  # ten times next to nothing is nothing
    assert {faults[-1] for faults in found} == {"1 of 1"}
    assert set(tables["cases"].groupby("model")["part"].first()) == set(PARTS)


def test_a_page_without_a_place_is_refused_before_any_work(tmp_path, capsys):
    (tmp_path / "page.md").write_text("nothing")
    assert main(["reproduce", "calibration", "--docs", str(tmp_path / "page.md"), "--out", str(tmp_path / "out")]) == 2
    assert "has no place for the tables" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_there_are_at_least_eight_faults_and_25_architectures():
    assert len(FAULTS) + len(GRADED) >= 8
    assert len(HARMLESS) == 4
    assert len(ARCHITECTURES) >= 25


def test_a_threshold_misses_no_fault_whatever_healthy_models_do():
    assert between([3.0, 40.0], [12.0], "above") == 6.0  # one false alarm, which no threshold below 12 avoids
    assert between([0.5, 0.01], [0.02], "below") == 0.1
    assert between([1.0], [], "above") is None
    assert between([0.0], [1.0], "above") is None  # no factor lies between


def test_our_own_runs_are_cases_healthy_ones_and_some_that_failed():
    runs = own_runs()
    failed = [run for run in runs if run.fault]
    assert {run.case for run in failed} == {"without skips, did not learn"}
    assert {run.part for run in failed} == {run.part for run in runs} == set(PARTS)
    assert len(runs) - len(failed) >= 90
    for run in runs:
        kinds = {verdict.kind for verdict in judge(run.report) if verdict.is_collapse}
        assert kinds == ({"rank collapse"} if run.fault else set()), run.model
    # what the store does not keep, gaps, could be a collapse only where entropies are next to nothing
    assert min(run.report.heads["entropy_normalised"].min() for run in runs if not run.fault) > 0.05


# What is committed: the package, the page and the study's files say the same.


@pytest.mark.parametrize("name", ["thresholds.json", "usual.json"])
def test_the_package_has_the_numbers_of_the_study(name):
    assert files("uncollapse.diagnosis").joinpath(name).read_text() == (STORED / name).read_text()


def test_the_committed_thresholds_are_in_the_middle_of_the_half_they_were_chosen_on():
    table = pd.read_csv(STORED / "margins.csv")
    for row in table[table["part"] == PARTS[0]].itertuples():
        assert row.between
        assert float(f"{math.sqrt(row.healthy * row.faulty):.2g}") == pytest.approx(row.threshold), row.quantity


def test_no_fault_is_missed_alarms_are_rarely_false_and_a_second_sample_agrees():
    table, rows = pd.read_csv(STORED / "summary.csv"), pd.read_csv(STORED / "cases.csv")
    assert table["missed"].sum() == 0
    assert (table["false"] / table["healthy"] < 0.02).all()
    twice = rows[rows["places"].notna()]
    assert len(twice) > 500
    assert twice["changed"].sum() <= 0.01 * twice["places"].sum()


def test_the_page_has_the_tables_and_the_thresholds():
    text = PAGE.read_text(encoding="utf-8")
    assert (STORED / "table.md").read_text(encoding="utf-8").strip() in text
    section = text.split("## Verdicts")[1].split("###")[0]
    rules = {line.split(" | ")[0].strip("| "): line for line in section.splitlines() if line.startswith("| ")}
    assert f"more than {CHOSEN.aligned_share:.0%} of the token pairs".replace("%", " %") in rules["rank collapse"]
    assert re.search(rf"below {100 * CHOSEN.residual_share:g} %", rules["rank collapse"])
    assert f"is above {CHOSEN.saturated_gap:g} |" in rules["entropy collapse"]
    assert f"by more than {CHOSEN.uniform_spread:g} |" in rules["dead attention"]


@pytest.mark.parametrize("page", ["watch.md", "my-run-spikes.md", "trackers.md"])
def test_other_pages_name_the_threshold_of_the_gap(page):
    text = (PAGE.parent / page).read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if "gap" in line)
    assert re.findall(r" above (\d+(?:\.\d+)?)", lines) == [f"{CHOSEN.saturated_gap:g}"]
