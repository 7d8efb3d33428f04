"""Weights that do not belong to the model are never replaced by random ones without a word."""

import json
import subprocess
import sys

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import uncollapse as uc
from tests.models.builders import BUILDERS, batch, build, logits


def rewrite(folder, change):
    """Change the weights of a saved model: a function from names to names, None leaves a weight out."""
    file = folder / "model.safetensors"
    weights = {change(name): tensor for name, tensor in load_file(file).items()}
    save_file({name: tensor for name, tensor in weights.items() if name}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", BUILDERS)
def test_every_family_loads_what_it_saved(name, tmp_path):
    model = build(name)
    model.save_pretrained(tmp_path)
    loaded = uc.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(loaded, **batch(name)), logits(model, **batch(name)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model.", "module._orig_mod."])
def test_the_prefix_of_a_wrapper_is_removed_and_that_is_said(prefix, tmp_path):
    model = uc.convert(build("gpt2"))
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda name: prefix + name)
    with pytest.warns(UserWarning, match=f"begin with {prefix}, which was removed"):
        loaded = uc.from_pretrained(tmp_path, dtype=torch.float64).eval()
    wanted = logits(model, **batch("gpt2"))
    torch.testing.assert_close(logits(loaded, **batch("gpt2")), wanted, rtol=1e-9, atol=1e-9)


def test_missing_and_unexpected_weights_are_named(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    rewrite(tmp_path, lambda name: None if ".h.2." in name else name)
    with pytest.raises(ValueError, match=r"12 weights are missing from .* for a GPT2LMHeadModel: transformer.h.2.attn"):
        uc.from_pretrained(tmp_path)

    build("gpt2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    # attn.bias, which early checkpoints hold as a mask, is none of them
    with pytest.raises(ValueError, match=r"11 weights are not expected in .*: transformer.h.3.attn"):
        uc.from_pretrained(tmp_path)

    build("gpt2").save_pretrained(tmp_path)
    rewrite(tmp_path, lambda name: f"somewhere.{name}")
    with pytest.raises(ValueError, match="weights are missing from"):
        uc.from_pretrained(tmp_path)


def test_a_head_may_differ(tmp_path):
    """A base checkpoint in a model with a head, and the other way round: what attention does is all there."""
    base = hf.BertModel(build("bert").config)
    base.save_pretrained(tmp_path)
    assert isinstance(uc.from_pretrained(tmp_path, hf.BertForMaskedLM), hf.BertForMaskedLM)
    build("bert").save_pretrained(tmp_path)
    assert isinstance(uc.from_pretrained(tmp_path, hf.BertModel), hf.BertModel)


def test_the_command_line_says_it_in_a_sentence(tmp_path):
    build("gpt2").save_pretrained(tmp_path / "model")
    rewrite(tmp_path / "model", lambda name: None if ".h.1." in name else name)
    command = [sys.executable, "-m", "uncollapse", "diagnose", tmp_path / "model", "--json"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert "12 weights are missing from" in run.stderr
    assert run.stderr.count("\n") == 1


def test_an_architecture_must_be_a_model(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("Trainer", "AutoTokenizer", "pipeline", "nothing"):
        (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [name]}))
        with pytest.raises(ValueError, match=f"names the architecture '{name}', which is no model of transformers"):
            uc.from_pretrained(tmp_path)


def test_code_in_the_folder_is_never_run_or_asked_about(tmp_path):
    """Even if somebody answers yes to everything."""
    folder = tmp_path / "model"
    build("gpt2").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "evil", "auto_map": own}))
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    command = [sys.executable, "-m", "uncollapse", "diagnose", folder, "--json"]
    run = subprocess.run(command, input="y\n" * 50, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert not ran.exists()
