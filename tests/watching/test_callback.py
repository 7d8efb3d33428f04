"""DiagnoseCallback in a plain Hugging Face Trainer."""

import warnings

import pytest
import torch
import transformers as hf

import uncollapse as uc
from uncollapse.diagnosis import Verdict
from uncollapse.watching.course import Course


def data():
    """Every second token repeats the one before it: easy to learn by looking back."""
    ids = torch.randint(0, 32, (512, 24), generator=torch.Generator().manual_seed(0))
    ids[:, 1::2] = ids[:, 0::2]
    return ids


def train(tmp_path, callback, rate, steps, **arguments):
    torch.manual_seed(0)
    config = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 32, "n_positions": 32}
    config |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**config))
    options = {"max_steps": steps, "per_device_train_batch_size": 16, "max_grad_norm": 0, "logging_steps": 2}
    options |= {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True} | arguments
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    trainer = hf.Trainer(
        model,
        hf.TrainingArguments(str(tmp_path), **options),
        train_dataset=[{"input_ids": row, "labels": row} for row in data()],
        callbacks=[callback],
        optimizers=(optimiser, schedule),
    )
    trainer.train()
    return trainer


def test_it_warns_of_entropy_collapse_before_the_loss_diverges(tmp_path):
    callback = uc.DiagnoseCallback({"input_ids": data()[:8]}, every=2)
    with pytest.warns(
        UserWarning, match=r"step \d+ \(since step \d+\): Layer.* entropy collapse in .* heads; worst is layer"
    ) as caught:
        trainer = train(tmp_path, callback, rate=lambda step: 0.005 * 1.1**step, steps=64)
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    diverged = min(step for step, loss in losses.items() if loss > 2 * losses[2])
    assert callback.first_seen["entropy collapse"] < diverged
    entropy_warnings = [w for w in caught if "entropy collapse in" in str(w.message)]
    assert len(entropy_warnings) == 1  # once, not at every diagnosis


def test_a_healthy_run_is_not_warned_of_and_its_numbers_are_logged(tmp_path):
    callback = uc.DiagnoseCallback(iter([{"input_ids": data()[:4]}, {"input_ids": data()[4:8]}]), every=3, keep=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"step \d+")
        trainer = train(tmp_path, callback, rate=lambda step: 1e-3, steps=7)
    logged = [entry for entry in trainer.state.log_history if "diagnose/seconds" in entry]
    assert [entry["step"] for entry in logged] == [0, 3, 6]
    assert logged[-1]["diagnose/layer_02/residual_ratio"] == callback.report.layers["residual_ratio"].iloc[1]
    assert "diagnose/layer_01_head_02/entropy_normalised" in logged[-1]
    assert list(callback.reports) == [0, 3, 6]
    assert trainer.model.training  # left as it was found


def test_without_batches_it_watches_the_forward_that_trains(tmp_path):
    callback = uc.DiagnoseCallback(every=2, keep=True)
    trainer = train(tmp_path / "run", callback, rate=lambda step: 1e-3, steps=4)
    assert list(callback.reports) == [2, 4]
    assert callback.report.info["sample"] == "the training batch of update 4"
    assert sorted(set(callback.watch.heads["step"])) == [2, 4]
    last = callback.watch.heads.query("step == 4")
    assert callback.report.heads["logit_max"].tolist() == last["logit_max"].tolist()
    logged = [entry for entry in trainer.state.log_history if "diagnose/seconds" in entry]
    assert [entry["step"] for entry in logged] == [2, 4]
    assert not trainer.model._forward_pre_hooks  # left as it was found
    assert "training batch of update 4" in callback.report.to_html(tmp_path / "page.html").read_text(encoding="utf-8")


def test_numbers_go_where_the_trainer_reports(tmp_path, monkeypatch):
    from transformers.integrations import integration_utils

    seen = []

    class Reporter(hf.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append((state.global_step, logs))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tensorboard", Reporter)
    train(
        tmp_path, uc.DiagnoseCallback({"input_ids": data()[:4]}, every=2), lambda step: 1e-3, 2, report_to="tensorboard"
    )
    assert any("diagnose/layer_01/entropy_min" in logs for step, logs in seen if step == 2)
    assert {step for step, logs in seen if {"attention/largest_gap", "attention/verdict"} <= logs.keys()} == {0, 2}
    assert all(isinstance(logs["attention/verdict"], str) for _, logs in seen if "attention/verdict" in logs)


def told(course, *measurements):
    alarm = Verdict("rank collapse", "Layer 1: rank collapse.")
    return [course.news(10 * n, [alarm] if found else []) for n, found in enumerate(measurements, start=1)]


def test_what_passes_is_not_told_and_what_lasts_is_with_recovery_and_relapse():
    assert told(Course(3), True, True, False, True, True) == [[]] * 5
    news = [s for said in told(Course(3), *[True] * 4, *[False] * 4, *[True] * 3) for s in said]
    assert news == [
        "step 30 (since step 10): Layer 1: rank collapse.",
        "step 70: recovered from the rank collapse told before, since step 50.",
        "step 110 (since step 90): relapse: Layer 1: rank collapse.",
    ]


def test_nan_is_told_at_once():
    course = Course(3)
    assert course.news(5, [Verdict("not finite", "Layer 2: NaN.")]) == ["step 5: Layer 2: NaN."]


def test_every_must_be_positive():
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        uc.DiagnoseCallback({}, every=0)
