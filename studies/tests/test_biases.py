"""Attention through the query bias is told apart from attention through W_QK."""

import pytest
import torch
from transformers import BertLMHeadModel

import uncollapse as uc
from uncollapse.training.tasks import task_of
from uncollapse_studies.cells.biases import entropy_without_query_bias

KEYS = {"layers": 1, "heads": 1, "width": 8, "length": 8, "vocab_size": 300, "family": "post-norm", "eval_examples": 4}
KEYS |= {"steps": 1, "batch_size": 2, "diagnose_every": 0, "dropout": 0.0}


@pytest.fixture
def run(tmp_path):
    """A run whose network can attend through its query bias alone: W_Q = 0, so W_QK = 0."""
    folder = uc.train("quickstart", tmp_path / "run", progress=False, **KEYS).folder
    model = uc.from_pretrained(folder / "model")
    assert isinstance(model, BertLMHeadModel)
    attention = model.bert.encoder.layer[0].attention.self
    with torch.no_grad():
        attention.query.weight.zero_()
        attention.query.bias[0] = 3.0
        attention.key.weight.copy_(torch.eye(8) * 3)
    model.save_pretrained(folder / "model")
    (folder / "model" / "manifest.json").unlink()  # changed on purpose
    return folder


def test_without_the_bias_attention_is_uniform(run):
    recipe = uc.Recipe.find(run)
    report = uc.diagnose(uc.from_pretrained(run / "model"), task_of(recipe).batches(4), progress=False)
    assert report.heads["qk_scale"].item() == 0
    assert report.heads["entropy_normalised"].item() < 0.9
    assert entropy_without_query_bias(run) == pytest.approx(1, abs=1e-5)  # float32


def test_a_w_that_attends_is_seen_without_the_bias(run):
    model = uc.from_pretrained(run / "model")
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.self.query.weight.copy_(torch.eye(8) * 3)
    model.save_pretrained(run / "model")
    assert entropy_without_query_bias(run) < 0.9
