"""Training as a user does it: what is learnt, measured, logged and kept."""

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

import uncollapse as uc
from tests.training.tiny import IMAGES, KEYS
from uncollapse.cli import main
from uncollapse.training.tasks import task_of

WORDS = {"eval_loss", "eval_perplexity", "eval_bits_per_byte"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    keys = KEYS | {"diagnose_every": 10, "examples": 100}
    return uc.train("quickstart", tmp_path_factory.mktemp("train") / "run", progress=False, steps=20, **keys)


def test_the_run_folder_holds_what_is_promised(run):
    parts = {path.name for path in run.folder.iterdir()}
    assert parts >= {"recipe.yaml", "metrics.jsonl", "checkpoints", "model", "diagnosis", "status.json"}
    assert sorted(p.name for p in (run.folder / "diagnosis").iterdir()) == ["step-000000", "step-000010", "step-000020"]
    assert sorted(p.name for p in (run.folder / "checkpoints").iterdir()) == ["checkpoint-18", "checkpoint-20"]
    assert uc.Recipe.find(run.folder).steps == 20


def test_the_held_out_loss_is_that_of_the_saved_model(run):
    task = task_of(uc.Recipe.find(run.folder))
    ids = torch.stack([task.valid[i]["input_ids"] for i in range(len(task.valid))])
    with torch.no_grad():
        logits = run.model.eval()(ids).logits
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()
    assert run.final("eval_loss") == pytest.approx(loss, rel=1e-5)  # float32 sums in another order
    assert run.final("eval_perplexity") == pytest.approx(math.exp(loss), rel=1e-4)
    assert run.final("eval_bits_per_byte") == pytest.approx(loss / math.log(2) / task.bytes_per_token, rel=1e-5)


def test_the_saved_model_has_its_attention_and_can_be_diagnosed(run):
    assert run.model.config.uncollapse["alpha"] == 0.5
    last = uc.Diagnosis.load(run.folder / "diagnosis" / "step-000020")
    now = uc.diagnose(run.model, task_of(uc.Recipe.find(run.folder)).batches(8), progress=False)
    # float32: the reloaded weights lie elsewhere, and sums round by that
    assert now.layers["residual_ratio"].tolist() == pytest.approx(last.layers["residual_ratio"].tolist(), rel=1e-5)


def test_every_line_of_metrics_has_step_and_time_and_the_diagnosis_is_among_them(run):
    assert all({"step", "epoch", "seconds"} <= line.keys() for line in run.metrics)
    steps = [line["step"] for line in run.metrics]
    assert steps == sorted(steps)
    assert [line["step"] for line in run.metrics if "diagnose/layer_01/residual_ratio" in line] == [0, 10, 20]
    assert [line["step"] for line in run.metrics if "eval_loss" in line] == [8, 16, 20]
    assert len([line for line in run.metrics if "loss" in line]) == 20


def test_it_learns(tmp_path):
    keys = KEYS | {"dropout": 0.0, "warmup_steps": 5, "log_every": 10, "examples": 400, "save_every": 100, "width": 32}
    run = uc.train("quickstart", tmp_path / "run", progress=False, steps=100, learning_rate=1e-2, **keys)
    assert run.final("eval_loss") < math.log(300) - 0.7


def test_images_are_learnt_and_all_held_out_ones_counted(tmp_path):
    run = uc.train(IMAGES, tmp_path / "run", progress=False, steps=120, name="digits", rule="hopfield")
    assert run.final("eval_accuracy") > 0.5
    right = 50 * run.final("eval_accuracy")
    assert right == pytest.approx(round(right), abs=1e-4)


def test_a_probe_changes_nothing_but_the_classifier(tmp_path):
    trained = uc.train(IMAGES, tmp_path / "run", progress=False, steps=20, rule="hopfield")
    probe = IMAGES | {"probe": True, "model": str(trained.folder)}
    probed = uc.train(probe, tmp_path / "probe", progress=False, steps=10)
    before, after = trained.model.state_dict(), probed.model.state_dict()
    assert {n for n in after if not torch.equal(before[n], after[n])} == {"classifier.weight", "classifier.bias"}
    assert probed.model.config.uncollapse["alpha"] == 0.5


def test_alpha_rises_from_zero_when_a_checkpoint_is_trained_on(tmp_path, run):
    stock = uc.train("quickstart", tmp_path / "stock", progress=False, steps=2, **KEYS | {"rule": "self_attention"})
    keys = {name: KEYS[name] for name in ("length", "batch_size", "eval_examples", "examples", "save_every")}
    more = uc.train(
        "uptrain", tmp_path / "more", progress=False, model=str(stock.folder), steps=4, alpha_warmup=8, **keys
    )
    assert more.model.config.uncollapse["alpha"] == pytest.approx(0.5 * 3 / 8)  # step 4 began after 3 updates
    assert more.model.config.uncollapse["rule"]["keep"] == pytest.approx(0.5 * 3 / 8)
    assert (
        uc.train(
            "uptrain", tmp_path / "all", progress=False, model=str(stock.folder), steps=4, alpha_warmup=2, **keys
        ).model.config.uncollapse["alpha"]
        == 0.5
    )


@pytest.mark.parametrize("keys", [{"kappa_scale": 1.0}, {"family": "llama", "kv_heads": 1}, {"family": "post-norm"}])
def test_every_family_trains_and_locater_is_logged(keys, tmp_path):
    run = uc.train("quickstart", tmp_path / "run", progress=False, steps=2, **KEYS | keys)
    assert run.status == "finished"
    assert {name for line in run.metrics for name in line} >= WORDS
    assert any("locater/penalty" in line for line in run.metrics) == ("kappa_scale" in keys)


def test_accumulation_gives_the_losses_of_one_batch(tmp_path):
    keys = KEYS | {"dropout": 0.0}
    runs = [
        uc.train("quickstart", tmp_path / str(parts), progress=False, steps=6, accumulation=parts, **keys)
        for parts in (1, 4)
    ]
    one, four = ([line["loss"] for line in r.metrics if "loss" in line] for r in runs)
    assert one == pytest.approx(four, abs=1e-5)


def test_the_command_prints_the_resolved_recipe(capsys):
    assert main(["train", "gpt2-small", "--alpha_hidden", "0.7", "--steps", "9", "--print_config"]) == 0
    printed = capsys.readouterr().out
    assert "alpha_hidden: 0.7\n" in printed
    assert "steps: 9\nepochs: null\n" in printed
    assert set(printed_keys(printed)) == {f.name for f in dataclasses.fields(uc.Recipe)}


def printed_keys(text):
    return [line.split(":")[0] for line in text.splitlines()]


def test_seeds_make_a_folder_each(tmp_path, capsys):
    options = [f"--{k}={v}" for k, v in KEYS.items()]
    assert main(["train", "quickstart", f"--out={tmp_path}", "--seeds", "2", "--steps", "2", *options]) == 0
    assert [uc.Recipe.find(tmp_path / f"seed-{s}").seed for s in (0, 1)] == [0, 1]
    assert capsys.readouterr().out.count("finished at step 2") == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["quickstart", "--alpha_hiden", "0.5"], "unknown option --alpha_hiden; did you mean --alpha_hidden?"),
        (["quickstart", "--steps", "0"], "steps must be at least 1, got 0."),
        (["quickstart", "--steps", "ten"], "--steps must be a whole number, got 'ten'."),
        (["quikstart"], "there is no recipe 'quikstart', and no such file; did you mean quickstart?"),
        (["quickstart", "--batch_size", "5", "--accumulation", "2"], "batch_size must be a multiple of processes x"),
        (["quickstart", "--examples", "3"], "the data has 3 examples, which is less than one batch of 8"),
        (["quickstart", "--data", "absent.txt"], "absent.txt"),
        (["uptrain", "--model", "/absent"], "there is no folder /absent, and the hub has no such model or cannot"),
        (["quickstart", "--seeds", "0"], "--seeds must be at least 1"),
        (["vit-probe-laptop"], "there is no folder runs/vit-laptop"),
    ],
)
def test_bad_input_gets_one_sentence(options, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    assert main(["train", *options, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_checkpoint_with_a_smaller_vocabulary_is_refused(tmp_path, run, capsys):
    options = ["--model", str(run.folder), "--tokenizer", "word", "--out", str(tmp_path / "run"), "--length", "16"]
    assert main(["train", "uptrain", *options]) == 2
    assert "entries, the model in" in capsys.readouterr().err


def test_a_listener_hears_of_every_update_and_of_the_loss_once_it_is_logged(tmp_path):
    heard = []
    keys = KEYS | {"log_every": 2, "diagnose_every": 0}
    run = uc.train(
        "quickstart", tmp_path / "run", progress=False, steps=3, on_step=lambda *told: heard.append(told), **keys
    )
    assert [step for step, _ in heard] == [1, 2, 3]
    assert heard[0][1] is None
    logged = next(line["loss"] for line in run.metrics if "loss" in line)
    assert heard[2][1] == pytest.approx(logged)
