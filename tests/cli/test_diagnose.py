"""`uncollapse diagnose` as a user meets it, on models saved to disk."""

import json
import lzma
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, ViTConfig, ViTForImageClassification

import uncollapse as uc
from tests.diagnosis.trained import model_folder, needs_data, stories
from uncollapse.cli import main


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A saved model with a tokenizer of single characters."""
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    vocabulary = {chr(code): code - 32 for code in range(32, 128)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary | {"[UNK]": 96}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    config = GPT2Config(n_layer=3, n_embd=16, n_head=2, vocab_size=97, n_positions=64, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_it_needs_no_other_argument(gpt2, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", str(gpt2)]) == 0
    printed = capsys.readouterr()
    assert "No collapse found" in printed.out
    assert "16 x 64 tokens of Python's help texts (its own tokenizer)" in printed.out
    out = tmp_path / f"uncollapse-diagnosis-{gpt2.name}"
    assert f"{out.name}/report.html" in printed.err
    layers = pd.read_csv(out / "layers.csv")
    assert layers["layer"].tolist() == [1, 2, 3]
    assert "<html" in (out / "report.html").read_text()
    saved = uc.Diagnosis.load(out / "diagnosis")
    assert saved.heads["entropy_mean"].tolist() == pytest.approx(
        pd.read_csv(out / "heads.csv")["entropy_mean"].tolist()
    )

    assert main(["diagnose", str(gpt2)]) == 2  # nothing is overwritten silently
    assert "already holds files" in capsys.readouterr().err
    assert main(["diagnose", str(gpt2), "--force"]) == 0


def test_json_for_programs(gpt2, capsys):
    assert main(["diagnose", str(gpt2), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdicts"][0]["kind"] == "healthy"
    assert len(printed["heads"]) == 6


def test_fail_on_collapse(gpt2, tmp_path, capsys):
    model = GPT2LMHeadModel.from_pretrained(gpt2)
    with torch.no_grad():  # blocks that add nothing, and one and the same embedding for every token and position
        model.transformer.wte.weight.copy_(model.transformer.wte.weight[0].clone())
        model.transformer.wpe.weight.zero_()
    model.save_pretrained(tmp_path / "collapsed")
    assert main(["diagnose", str(tmp_path / "collapsed"), "--json", "--fail-on", "collapse"]) == 3
    assert "rank collapse" in capsys.readouterr().out
    assert main(["diagnose", str(gpt2), "--json", "--fail-on", "collapse"]) == 0


def test_a_run_folder_and_a_converted_model(gpt2, tmp_path, capsys):
    model = uc.convert(GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=16, n_head=2, vocab_size=97, n_positions=64)))
    model.save_pretrained(tmp_path / "run" / "model")
    assert main(["diagnose", str(tmp_path / "run"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["layers"]) == 3


def test_data_from_files(gpt2, tmp_path, capsys):
    text = "To be, or not to be, that is the question. " * 40
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(text.encode()))
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text[i : i + 50]}) for i in range(4)))
    np.savez(tmp_path / "a.npz", input_ids=np.random.default_rng(0).integers(0, 97, (3, 20)))
    tables = {}
    for name in ("a.txt", "a.txt.xz", "a.jsonl", "a.npz"):
        data = ["--data", str(tmp_path / name), "--sequences", "3", "--length", "40"]
        assert main(["diagnose", str(gpt2), "--json", *data]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["info"]["sequences"] == 3
        tables[name] = printed["layers"]
    ratios = {name: [row["residual_ratio"] for row in table] for name, table in tables.items()}
    assert ratios["a.txt"] == pytest.approx(ratios["a.txt.xz"], rel=1e-6)  # float32 sums round by where they lie
    assert ratios["a.txt"] != pytest.approx(ratios["a.npz"], rel=1e-3)  # other tokens


def test_images(tmp_path, capsys):
    config = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    config.image_size, config.patch_size = 16, 4
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    np.savez(tmp_path / "a.npz", images=np.random.default_rng(0).integers(0, 255, (3, 32, 32, 3)).astype(np.uint8))
    assert main(["diagnose", str(tmp_path / "vit"), "--json", "--data", str(tmp_path / "a.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["info"]["sequences"] == 3
    assert main(["diagnose", str(tmp_path / "vit"), "--json"]) == 0
    assert "photographs" in json.loads(capsys.readouterr().out)["info"]["sample"]


def bad_inputs(gpt2, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x80")
    (tmp_path / "one.txt").write_text("a")
    (tmp_path / "broken.jsonl").write_text('{"text": "abc"}\n{oops')
    (tmp_path / "fields.jsonl").write_text('{"title": "abc"}')
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "large.npz", input_ids=np.full((1, 5), 500))
    (tmp_path / "folder").mkdir()
    model = str(gpt2)
    return [
        ([str(tmp_path / "folder")], "is not the folder of a model: it has no config.json."),
        ([model, "--data", str(tmp_path / "none.txt")], "there is no file"),
        ([model, "--data", str(tmp_path / "empty.txt")], "empty.txt is empty; give a file with text."),
        ([model, "--data", str(tmp_path / "binary.txt")], "cannot be read as text"),
        ([model, "--data", str(tmp_path / "one.txt")], "holds fewer than two tokens."),
        ([model, "--data", str(tmp_path / "broken.jsonl")], "line 2 of"),
        (
            [model, "--data", str(tmp_path / "fields.jsonl")],
            "has the fields title; one of text, input_ids, image is needed.",
        ),
        ([model, "--data", str(tmp_path / "broken.npz")], "cannot be read as .npz"),
        ([model, "--data", str(tmp_path / "other.npz")], "holds x; `images` or `input_ids` is needed."),
        ([model, "--data", str(tmp_path / "large.npz")], "must be whole numbers from 0 to 96"),
        ([model, "--tokenizer", str(tmp_path)], "holds no tokenizer of this model, whose vocabulary has 97 tokens."),
        ([model, "--device", "nowhere"], "--device nowhere cannot be used"),
        ([model, "--data", str(tmp_path / "one.txt"), "--tokenizer", str(tmp_path)], "no tokenizer was found at"),
        ([model, "--architecture", "NoSuchModel"], "transformers has no class 'NoSuchModel'"),
        ([model, "--length", "1"], "--sequences must be at least 1 and --length 2"),
        ([model, "--fail-on", "anything"], "--fail_on must be one of collapse, worse, got 'anything'."),
    ]


def test_bad_input_is_one_sentence_and_exit_code_two(gpt2, tmp_path, capsys):
    for arguments, sentence in bad_inputs(gpt2, tmp_path):
        assert main(["diagnose", *arguments, "--json"]) == 2, arguments
        printed = capsys.readouterr().err
        assert sentence in printed, arguments
        assert printed.count("\n") == 1, printed


def test_an_unreachable_hub_says_how_to_give_a_path():
    run = subprocess.run(
        [sys.executable, "-m", "uncollapse", "diagnose", "someone/no-such-model", "--json"],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert run.stderr.strip().splitlines()[-1].endswith("give the path of a folder that save_pretrained wrote.")


@pytest.fixture(scope="module")
def stories_folder(tmp_path_factory):
    """The trained LLaMA of 260,000 parameters as a folder without any tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "stories260K"
    stories()[0].save_pretrained(folder)
    return folder


@needs_data
def test_a_trained_model_without_a_tokenizer_is_healthy_on_what_it_writes(stories_folder, capsys):
    assert main(["diagnose", str(stories_folder), "--json", "--fail-on", "collapse"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "the model wrote itself" in printed["info"]["sample"]
    assert printed["info"]["model"] == "stories260K"  # and not where it lies
    assert printed["info"]["loss"] < printed["info"]["guessing"] / 2


@needs_data
def test_a_bare_sentencepiece_file_is_used(stories_folder, tmp_path, capsys):
    folder = tmp_path / "with-tokenizer"
    shutil.copytree(stories_folder, folder)
    shutil.copy(model_folder("stories260K") / "tok512.model", folder / "tokenizer.model")
    assert main(["diagnose", str(folder), "--json", "--sequences", "4", "--batch_size", "4"]) == 0
    assert (
        "4 x 256 tokens of Python's help texts (its own tokenizer)"
        in json.loads(capsys.readouterr().out)["info"]["sample"]
    )
    arguments = ["--tokenizer", str(folder), "--length", "32", "--dtype", "bfloat16", "--device", "cpu"]
    assert main(["diagnose", str(stories_folder), "--json", *arguments]) == 0
    assert (
        "16 x 32 tokens of Python's help texts (the given tok" in json.loads(capsys.readouterr().out)["info"]["sample"]
    )


@needs_data
def test_text_that_the_model_cannot_read_is_said_first_with_a_code_of_its_own(stories_folder, tmp_path, capsys):
    text = np.frombuffer(b"To be, or not to be, that is the question. " * 8, np.uint8)
    np.savez(tmp_path / "bytes.npz", input_ids=text[: 4 * 64].reshape(4, 64).astype(np.int64))
    for more in ([], ["--fail-on", "collapse"]):
        assert main(["diagnose", str(stories_folder), "--json", "--data", str(tmp_path / "bytes.npz"), *more]) == 5
        first = json.loads(capsys.readouterr().out)["verdicts"][0]
        assert first["kind"] == "unreadable sample"
        assert "guessing gives 6.24" in first["sentence"]


def test_a_name_or_a_path_is_enough_in_python(gpt2):
    assert uc.diagnose(gpt2).info["model"] == gpt2.name
    assert len(uc.diagnose(str(gpt2)).layers) == 3


def test_something_that_was_not_measured_has_a_code_of_its_own(tmp_path, capsys):
    from uncollapse_studies.calibration.architectures import build

    build("qwen3_next").save_pretrained(tmp_path / "hybrid")
    assert main(["diagnose", str(tmp_path / "hybrid"), "--json"]) == 0
    assert main(["diagnose", str(tmp_path / "hybrid"), "--json", "--fail-on", "collapse"]) == 4


def test_what_got_worse_since_a_baseline_is_said_by_head_and_fails(gpt2, tmp_path, capsys):
    old = tmp_path / "old"
    assert main(["diagnose", str(gpt2), "--out", str(old)]) == 0
    model = GPT2LMHeadModel.from_pretrained(gpt2)
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight[:, :8] *= 400.0  # the queries of layer 2, head 1
    model.save_pretrained(tmp_path / "new")
    for file in gpt2.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "new" / file.name)
    capsys.readouterr()
    arguments = ["--json", "--baseline", str(old), "--fail-on", "worse"]
    assert main(["diagnose", str(tmp_path / "new"), *arguments]) == 6
    changes = json.loads(capsys.readouterr().out)["worse"]
    heads = [change for change in changes if "head" in change]
    assert heads
    assert all(change.startswith("layer 2, head 1: ") for change in heads)
    assert main(["diagnose", str(gpt2), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["worse"] == []
    assert main(["diagnose", str(gpt2), "--json", "--fail-on", "worse"]) == 2
