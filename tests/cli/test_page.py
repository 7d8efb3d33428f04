"""`uncollapse page`: the page of saved diagnoses."""

import pytest
import torch

import uncollapse as uc
from uncollapse.cli import main


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two diagnoses, one saved by itself and one in the folder of a command."""
    root = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    for name, factor in (("calm", 1.0), ("sharp/diagnosis", 9.0)):
        with uc.Observer(name.split("/")[0]) as observer:
            for layer in (1, 2):
                observer.attention(layer, *(factor * torch.randn(2, 1, 2, 9, 4)))
        observer.diagnosis.save(root / name)
    return [str(root / "calm"), str(root / "sharp")]


def test_one_diagnosis_is_a_page(saved, tmp_path, capsys):
    out = tmp_path / "new" / "calm.html"
    assert main(["page", saved[0], "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"page: {out}\n"
    page = out.read_text(encoding="utf-8")
    assert "calm" in page
    assert "https://cdn" not in page  # self-contained
    assert main(["page", saved[0], "--out", str(out)]) == 2
    assert "exists; choose another file with --out, or pass --force" in capsys.readouterr().err
    assert main(["page", saved[0], "--out", str(out), "--force"]) == 0


def test_several_diagnoses_are_compared(saved, tmp_path):
    out = tmp_path / "both.html"
    assert main(["page", *saved, "--out", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert "calm" in page
    assert "sharp" in page


def test_compare_takes_saved_diagnoses_too(saved, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["compare", *saved, "--out", str(out)]) == 0
    assert "sharp" in capsys.readouterr().out
    assert [file.name for file in out.iterdir()] == ["compare.html"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["absent"], "absent does not exist; give a folder that uncollapse diagnose"),
        ([0, "absent", "--out", "."], "absent does not exist"),  # what is given is looked at first
        (["."], ". holds no saved diagnosis (diagnosis.json)"),
        ([0, 0, 0, 1, 1], "two to 4 diagnoses can be compared, got 5."),
        ([0, "--out", "."], ". is a folder; give the name of an .html file with --out."),
    ],
)
def test_bad_input_is_one_sentence(saved, given, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["page", *(saved[own] if isinstance(own, int) else own for own in given)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
