"""A saved diagnosis is read back as it was, and nothing is overwritten."""

import json

import pandas as pd
import pytest
import torch

import uncollapse as uc
from tests.models.builders import batch, build


@pytest.fixture(scope="module")
def report():
    return uc.diagnose(build("llama"), batch("llama"))


def test_a_round_trip_keeps_every_table_and_word(report, tmp_path):
    folder = report.save(tmp_path / "new" / "diagnosis")
    again = uc.Diagnosis.load(folder)
    for name, table in report.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table, check_dtype=False)
    assert set(again.histograms["cosine"]["kind"]) == {"raw", "centred"}  # a column of text
    for name in ("info", "missing", "notes", "not_finite", "verdicts"):
        assert getattr(again, name) == getattr(report, name), name
    assert str(again) == str(report)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["diagnosis"]  # no draft is left


def test_nan_and_gaps_survive(tmp_path):
    with uc.Observer("mine") as observer:
        observer.tokens(1, torch.full((1, 3, 2), float("nan")))
        observer.missing["attention"] = "it was not fed."
    again = uc.Diagnosis.load(observer.diagnosis.save(tmp_path / "d"))
    assert (again.not_finite, again.missing) == (1, {"attention": "it was not fed."})
    assert again.layers["residual_ratio"].isna().all()
    assert again.heads.empty
    assert str(again) == str(observer.diagnosis)


def test_an_existing_folder_is_not_touched(report, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="exists already"):
        report.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_without_a_diagnosis_is_named(report, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no saved diagnosis"):
        uc.Diagnosis.load(tmp_path / "nowhere")
    folder = report.save(tmp_path / "d")
    (folder / "diagnosis.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="holds no saved diagnosis"):
        uc.Diagnosis.load(folder)


def test_another_format_is_refused(report, tmp_path):
    folder = report.save(tmp_path / "d")
    about = json.loads((folder / "diagnosis.json").read_text())
    (folder / "diagnosis.json").write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(ValueError, match="has format 99"):
        uc.Diagnosis.load(folder)


def test_print_shows_verdicts_and_a_row_a_layer(report):
    text = str(report)
    assert "Diagnosis of LlamaForCausalLM: 4 layers, 2 sequences, 22 tokens" in text
    assert all(str(verdict) in text for verdict in report.verdicts)
    assert "Rotary positions" in text
