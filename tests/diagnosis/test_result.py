"""A saved diagnosis is read back as it was, and nothing is overwritten."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file

import uncollapse as uc
from tests.models.builders import batch, build
from tests.processes import process


@pytest.fixture(scope="module")
def report():
    return uc.diagnose(build("llama"), batch("llama"))


def test_a_round_trip_keeps_every_table_and_sentence(report, tmp_path):
    folder = report.save(tmp_path / "new" / "diagnosis")
    again = uc.Diagnosis.load(folder)
    for name, table in report.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table, check_dtype=False)
    assert set(again.histograms["cosine"]["kind"]) == {"raw", "centred"}  # a column of text
    for name in ("info", "missing", "notes", "not_finite", "verdicts"):
        assert getattr(again, name) == getattr(report, name), name
    assert str(again) == str(report)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["diagnosis"]  # no temporary folder is left


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
    (folder / "diagnosis.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no saved diagnosis: .* diagnosis\.npz is missing"):
        uc.Diagnosis.load(folder)


def test_another_format_is_refused(report, tmp_path):
    folder = report.save(tmp_path / "d")
    about = json.loads((folder / "diagnosis.json").read_text())
    (folder / "diagnosis.json").write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(ValueError, match="has format 99"):
        uc.Diagnosis.load(folder)


def as_format_1(folder):
    """A saved diagnosis as version 0.1 wrote it."""
    file = folder / "diagnosis.npz"
    with np.load(file) as arrays:
        save_file(dict(arrays), folder / "diagnosis.safetensors")
    file.unlink()
    about = json.loads((folder / "diagnosis.json").read_text())
    (folder / "diagnosis.json").write_text(json.dumps(about | {"format": 1}))
    return folder


def test_a_diagnosis_of_version_0_1_is_read(report, tmp_path):
    again = uc.Diagnosis.load(as_format_1(report.save(tmp_path / "d")))
    for name, table in report.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table, check_dtype=False)
    assert str(again) == str(report)


def test_a_diagnosis_of_version_0_1_names_the_extra_it_needs(report, tmp_path, monkeypatch):
    folder = as_format_1(report.save(tmp_path / "d"))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"needs the package safetensors.*pip install 'uncollapse\[hf\]'"):
        uc.Diagnosis.load(folder)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def spoil(file):
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    file.write_bytes(content)


def empty(file):
    file.write_bytes(b"")


def without_layers(file):
    if file.suffix == ".json":
        file.write_text(json.dumps({"format": 2, "columns": {}}))
    else:
        with np.load(file) as arrays:
            kept = {name: array for name, array in arrays.items() if not name.startswith("layers.")}
        np.savez(file, **kept)


@pytest.mark.parametrize("harm", [cut, spoil, empty, without_layers])
@pytest.mark.parametrize("name", ["diagnosis.json", "diagnosis.npz"])
def test_damage_is_one_sentence_that_names_the_file(name, harm, report, tmp_path):
    folder = report.save(tmp_path / "d")
    harm(folder / name)
    with pytest.raises(ValueError, match=rf"{name} is damaged \(.+\); diagnose the model again\.$") as caught:
        uc.Diagnosis.load(folder)
    assert "\n" not in str(caught.value)


def test_damage_of_a_diagnosis_of_version_0_1_is_named_too(report, tmp_path):
    folder = as_format_1(report.save(tmp_path / "d"))
    cut(folder / "diagnosis.safetensors")
    with pytest.raises(ValueError, match=r"diagnosis\.safetensors is damaged \(.+\); diagnose the model again\.$"):
        uc.Diagnosis.load(folder)


def test_arrays_that_would_run_code_are_not_read(report, tmp_path):
    folder = report.save(tmp_path / "d")
    with np.load(folder / "diagnosis.npz") as arrays:
        others = dict(arrays)
    np.savez(folder / "diagnosis.npz", **others | {"layers.layer": np.array([{}], dtype=object)})
    with pytest.raises(ValueError, match=r"diagnosis\.npz is damaged"):
        uc.Diagnosis.load(folder)


def test_a_notebook_shows_text_where_the_charts_are_not_installed(report, monkeypatch):
    assert "<" in report._repr_html_()
    monkeypatch.setitem(sys.modules, "altair", None)
    assert report._repr_html_() is None  # IPython then takes __repr__


WITH_THE_CORE_ALONE = """
import sys
for name in ("accelerate", "altair", "datasets", "safetensors", "scipy", "sklearn", "tokenizers", "transformers",
             "vl_convert", "yaml"):
    sys.modules[name] = None
import torch
import uncollapse as uc
with uc.Observer("mine") as observer:
    observer.tokens(1, torch.randn(1, 3, 2))
again = uc.Diagnosis.load(observer.diagnosis.save({path!r}))
print(str(again) == str(observer.diagnosis), again._repr_html_())
"""


def test_a_diagnosis_is_saved_and_read_with_the_core_alone(tmp_path):
    with process(WITH_THE_CORE_ALONE.format(path=str(tmp_path / "d"))) as run:
        out, said = run.communicate(timeout=600)
    assert out == "True None\n", said
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["diagnosis.json", "diagnosis.npz"]


def test_print_shows_verdicts_and_one_row_per_layer(report):
    text = str(report)
    assert "Diagnosis of LlamaForCausalLM: 4 layers, 2 sequences, 22 tokens" in text
    assert all(str(verdict) in text for verdict in report.verdicts)
    assert "Rotary positions" in text
