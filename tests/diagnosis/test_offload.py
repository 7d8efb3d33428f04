"""Weights on disk or in another memory: the numbers are those of the model in memory."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model, init_empty_weights

import uncollapse as uc
from tests.models.builders import batch, build

ROOT = Path(__file__).parents[2]


def offloaded(kind, folder):
    model = build("llama")
    if kind == "cpu":
        return cpu_offload(model, torch.device("cpu"))
    if kind == "disk":
        return disk_offload(model, folder, torch.device("cpu"))
    places = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {f"model.layers.{n}": "disk" if n % 2 else "cpu" for n in range(4)}
    return dispatch_model(model, places, main_device="cpu", offload_dir=folder, force_hooks=True)


@pytest.mark.parametrize("kind", ["cpu", "disk", "cpu and disk"])
def test_stock_and_converted(kind, tmp_path):
    inputs, here = batch("llama"), build("llama")
    model = offloaded(kind, tmp_path)
    for _ in range(2):
        got, wanted = (uc.diagnose(m, inputs, progress=False) for m in (model, here))
        assert got.heads.equals(wanted.heads)
        assert got.layers.equals(wanted.layers)
        assert not got.missing
        model, here = (uc.convert(m, alpha=0.3, alpha_hidden=0.6) for m in (model, here))
        assert torch.equal(model(**inputs).logits, here(**inputs).logits)


def test_weights_without_values_are_refused_at_the_start():
    with init_empty_weights():
        model = build("llama")
    with pytest.raises(ValueError, match="are on the meta device, so they have no values"):
        uc.diagnose(model, batch("llama"), progress=False)


def test_a_model_larger_than_its_share_of_memory(tmp_path):
    """The script for 30 GB, at 40 MB."""
    command = [sys.executable, ROOT / "benchmarks" / "larger_than_memory.py", tmp_path / "weights"]
    run = subprocess.run(
        [*command, "--gigabytes", "0.04", "--width", "256", "--tokens", "16"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "in 19 layers diagnosed in" in run.stdout
    assert "not measured: nothing" in run.stdout
    assert not (tmp_path / "weights").exists()
