"""What is wrong is said in one sentence."""

import warnings

import pytest
import torch
from torch import nn

import uncollapse as uc
from tests.models.builders import batch, build
from tests.watching.loops import sgd, train


def test_arguments():
    model = build("gpt2")
    with pytest.raises(ValueError, match=r"every must be a whole number of updates of at least 1, got 0\."):
        uc.watch(model, every=0)
    with pytest.raises(ValueError, match=r"got 2\.5\."):
        uc.watch(model, every=2.5)
    with pytest.raises(ValueError, match="the optimizer has no parameter of this GPT2LMHeadModel"):
        uc.watch(model, sgd(build("bert")))
    with pytest.raises(ValueError, match=r"optimizer must be a torch\.optim\.Optimizer, got str"):
        uc.watch(model, "adam")
    with pytest.raises(ValueError, match=r"model must be a torch\.nn\.Module, got str"):
        uc.watch("gpt2")
    with pytest.raises(ValueError, match="log must be a callable that takes a dict and a step"):
        uc.watch(model, log=3)
    with pytest.raises(ValueError, match="there is no detector 'forcast'; there are thresholds, spike, forecast"):
        uc.watch(model, detectors=["forcast"])
    with pytest.raises(ValueError, match="on_warning must be callable, got int"):
        uc.watch(model, on_warning=1)
    with uc.watch(model), pytest.raises(ValueError, match="is watched already; close"):
        uc.watch(model)
    assert not model._forward_pre_hooks


def test_a_remedy_that_came_after_the_optimizer_is_told():
    model = build("gpt2").train()
    optimizer = sgd(model)
    uc.apply(model, "qk_norm")
    with pytest.warns(UserWarning, match="is not in the optimizer, so it is not trained: make the optimizer after"):
        uc.watch(model, optimizer).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uc.watch(model, sgd(model)).close()


def test_a_run_that_is_too_short_to_be_measured_has_tables_with_columns_and_a_note():
    model = build("gpt2").train()
    optimizer = sgd(model)
    with uc.watch(model, optimizer) as watch:
        train(model, optimizer, [batch("gpt2")] * 2)
    assert watch.notes == ["No update was measured: there were 2, and every=50."]
    assert watch.heads[["step", "layer", "head", "logit_max"]].empty
    assert repr(watch) == "Watch of GPT2LMHeadModel: 2 updates, 0 measured, 0 warnings"


def test_a_model_without_attention():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with uc.watch(model), pytest.raises(ValueError, match="no attention was"):
        model(torch.randn(2, 3))
    import transformers as hf

    with pytest.raises(ValueError, match="no attention was found in ResNetModel"):
        uc.watch(hf.ResNetModel(hf.ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1])))


def test_a_failing_log_is_told_once_and_the_tables_go_on():
    model = build("gpt2").train()
    optimizer, calls = sgd(model), []

    def log(numbers, step):
        calls.append(step)
        raise OSError("no space left\non device")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with uc.watch(model, optimizer, every=1, log=log) as watch:
            train(model, optimizer, [batch("gpt2")] * 3)
    told = [str(w.message) for w in caught if "the log of" in str(w.message)]
    assert told == [
        "the log of uncollapse.watch failed at step 1 (no space left on device); the training and the tables go on, "
        "and each measurement is offered to the log again."
    ]
    assert calls == [1, 2, 3]
    assert sorted(set(watch.heads["step"])) == [1, 2, 3]


def test_a_detector_that_fails_does_not_end_the_training():
    model = build("gpt2").train()
    optimizer = sgd(model)

    def broken(recent):
        raise KeyError("gap")

    told = pytest.warns(UserWarning, match=r"update 1 could not be judged by broken \('gap'\)")
    with told, uc.watch(model, optimizer, every=1, detectors=[broken]) as watch:
        train(model, optimizer, [batch("gpt2")] * 2)
    assert sorted(set(watch.heads["step"])) == [1, 2]


def test_a_measurement_that_fails_does_not_end_the_training(monkeypatch):
    from uncollapse.diagnosis import attention_rows

    model = build("gpt2").train()
    optimizer = sgd(model)

    def full(*args):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(attention_rows, "row_statistics", full)
    with pytest.warns(UserWarning, match=r"out of memory"), uc.watch(model, optimizer, every=1) as watch:
        losses = train(model, optimizer, [batch("gpt2")] * 2)
    assert len(losses) == 2
    assert watch.layers["residual_ratio"].notna().all()


def test_a_folder_or_a_foreign_file_is_no_log(tmp_path):
    model = build("gpt2")
    with pytest.raises(ValueError, match="log is the folder"):
        uc.watch(model, log=tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        uc.watch(model, log=tmp_path / "none" / "watch.jsonl")
    (tmp_path / "notes.txt").write_text("my notes\n")
    with pytest.raises(ValueError, match=r"notes\.txt is no file that uncollapse\.watch wrote"):
        uc.watch(model, log=tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"
