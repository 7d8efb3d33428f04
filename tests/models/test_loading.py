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
from uncollapse.cli import main


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
    with pytest.warns(UserWarning, match=r"6 weights are not in .* for a BertForMaskedLM: cls.*; its head is new"):
        assert isinstance(uc.from_pretrained(tmp_path, hf.BertForMaskedLM), hf.BertForMaskedLM)
    build("bert").save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"a BertModel has no place for 5 weights of .*: cls.predictions"):
        assert isinstance(uc.from_pretrained(tmp_path, hf.BertModel), hf.BertModel)


def test_a_head_that_is_tied_is_not_missing(tmp_path, recwarn):
    model = build("gpt2")
    model.transformer.save_pretrained(tmp_path)
    loaded = uc.from_pretrained(tmp_path, hf.GPT2LMHeadModel, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(loaded, **batch("gpt2")), logits(model, **batch("gpt2")), rtol=1e-9, atol=1e-9)
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]


@pytest.mark.parametrize(("name", "head"), [("llama", "lm_head"), ("vit", "classifier"), ("bert", "cls.predictions")])
def test_a_head_that_the_config_names_must_be_there(name, head, tmp_path):
    build(name).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda key: None if key.startswith(head) else key)
    with pytest.raises(ValueError, match=rf"missing from .*: {head}"):
        uc.from_pretrained(tmp_path)


def test_weights_of_a_wrong_shape_are_named(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 41}))
    with pytest.raises(ValueError, match=r"1 weight is of a wrong shape in .*wte.weight is \(40, 32\), not \(41, 32\)"):
        uc.from_pretrained(tmp_path)
    kept = uc.from_pretrained(tmp_path, ignore_mismatched_sizes=True)  # where somebody asks for new ones
    assert kept.config.vocab_size == 41


def test_loading_draws_no_random_numbers(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    before = torch.get_rng_state()
    uc.from_pretrained(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_command_line_says_that_a_prefix_was_removed(tmp_path, capsys):
    build("gpt2").float().save_pretrained(tmp_path)
    rewrite(tmp_path, lambda name: f"module.{name}")
    capsys.readouterr()  # the progress bar of saving
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    assert capsys.readouterr().err == (
        f"uncollapse diagnose: the names of the weights of {tmp_path} begin with module., which was removed.\n"
    )


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


OWN_CODE = """
import transformers
open({ran!r}, "w")

class OwnConfig(transformers.GPT2Config):
    model_type = "own"

class OwnModel(transformers.GPT2LMHeadModel):
    config_class = OwnConfig
"""


@pytest.fixture
def own_code(tmp_path):
    """A model whose class is defined in its folder, and the file that this code makes when it is run."""
    folder, ran = tmp_path / "model", tmp_path / "ran"
    build("gpt2").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    config |= {"model_type": "own", "auto_map": own, "architectures": ["OwnModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(OWN_CODE.format(ran=str(ran)))
    return folder, ran


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, []),
        # a config that transformers knows, and a class that only the folder has
        ({"model_type": "gpt2"}, ["--architecture", "AutoModelForImageClassification"]),
    ],
)
def test_code_in_the_folder_is_never_run_or_asked_about(changes, options, own_code, tmp_path):
    """Even if somebody answers yes to everything."""
    folder, ran = own_code
    config = json.loads((folder / "config.json").read_text()) | changes
    config["auto_map"]["AutoModelForImageClassification"] = "own.OwnModel"
    (folder / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "uncollapse", "diagnose", folder, "--json", *options]
    run = subprocess.run(command, input="y\n" * 50, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr == (
        f"uncollapse diagnose: {folder} comes with code of its own, which is not run; read it first, then allow it "
        "with trust_remote_code=True, or uncollapse diagnose --trust-remote-code.\n"
    )
    assert not ran.exists()


def test_code_in_the_folder_is_run_if_it_is_trusted(own_code, tmp_path, monkeypatch):
    folder, ran = own_code
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))  # where transformers copies it to
    command = [sys.executable, "-m", "uncollapse", "diagnose", folder, "--json", "--trust-remote-code"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert len(json.loads(run.stdout)["layers"]) == 4
    assert ran.exists()


def test_the_class_must_be_a_model(tmp_path, capsys):
    build("gpt2").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Trainer is no model of transformers; name one such as BertForMaskedLM"):
        uc.from_pretrained(tmp_path, hf.Trainer)
    assert main(["diagnose", str(tmp_path), "--json", "--architecture", "Trainer"]) == 2
    assert "Trainer is no model of transformers" in capsys.readouterr().err
