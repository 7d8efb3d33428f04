"""uncollapse diagnose FILE.py:build --example ..."""

import json

import pytest
import torch

from uncollapse.cli import main

SOURCE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

def number():
    return 3

batch = torch.ones(1, 3, 8).cumsum(1)
batches = [batch, 2 * batch]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    torch.save({"src": torch.ones(1, 3, 8).cumsum(1)}, tmp_path / "batch.pt")
    return path


@pytest.mark.parametrize("example", ["batch", "batches", "batch.pt"])
def test_a_module_of_a_file_is_diagnosed(file, example, capsys):
    given = str(file.parent / example) if example.endswith(".pt") else example
    assert main(["diagnose", f"{file}:build", "--example", given, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["layers"]] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert report["info"]["sequences"] == (2 if example == "batches" else 1)
    assert report["info"]["sample"] == example  # without the folders above it


def test_options_that_would_mean_nothing_are_refused(file, capsys):
    for option in ("data", "tokenizer", "dtype"):
        value = "float32" if option == "dtype" else "somewhere"
        assert main(["diagnose", f"{file}:build", "--example", "batch", "--json", f"--{option}", value]) == 2
        assert f"--{option} does not go with FILE.py:build" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "example", "sentence"),
    [
        ("mine.py:build", None, "mine.py:build needs --example"),
        ("mine.py:biuld", "batch", "has no biuld; did you mean build?"),
        ("mine.py:build", "bacth", "has no bacth; did you mean batch?"),
        ("mine.py:number", "batch", "must make a torch.nn.Module, and made a int"),
        ("other.py:build", "batch", "there is no file"),
        ("mine.py:build", "none.pt", "there is no file none.pt"),
        ("gpt2", "batch", "--example goes with a model that is named as FILE.py:build"),
    ],
)
def test_errors_are_one_sentence(file, model, example, sentence, capsys):
    name = str(file.parent / model) if ".py" in model else model
    arguments = ["diagnose", name, "--json", *(["--example", example] if example else [])]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
