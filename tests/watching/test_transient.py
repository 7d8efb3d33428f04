"""A healthy LLaMA passes through a state that looks collapsed; the callback is silent there, and tells a real one."""

import copy
import re
import warnings

import pytest
import torch
import transformers as hf

import uncollapse as uc
from uncollapse.data.sample import embedded_bytes

RATE, LENGTH = 3e-3, 64
COLLAPSED = [*range(52, 58), *range(64, 69)]  # steps after which all tokens are one and the same


class Accident(hf.TrainerCallback):
    """One embedding for every token, as long as it lasts; then the weights from before, as from a checkpoint."""

    def __init__(self, watcher):
        self.watcher, self.saved = watcher, None

    def on_step_end(self, args, state, control, model, **kwargs):
        self.watcher.every = 10 if state.global_step <= 50 else 2  # so that the test is short
        if state.global_step in COLLAPSED:
            self.saved = self.saved or copy.deepcopy(model.state_dict())
            embedding = model.get_input_embeddings().weight.data
            embedding.copy_(embedding[:1].clone().expand_as(embedding))
        elif self.saved is not None:
            model.load_state_dict(self.saved)
            self.saved = None


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The callback after a run, what it warned of, and the losses by step."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=256, max_position_embeddings=LENGTH, **sizes, **ends))
    rows = embedded_bytes(1200, LENGTH)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    callback = uc.DiagnoseCallback({"input_ids": rows[:8]}, keep=True)
    options = {"max_steps": COLLAPSED[-1], "per_device_train_batch_size": 16, "learning_rate": RATE}
    options |= {"logging_steps": 10, "lr_scheduler_type": "constant"}
    options |= {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    trainer = hf.Trainer(
        model,
        hf.TrainingArguments(str(tmp_path_factory.mktemp("run")), **options),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows[8:]],
        callbacks=[Accident(callback), callback],
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    told = [str(warning.message) for warning in caught if str(warning.message).startswith("step ")]
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    return callback, told, losses


def collapsed_at(callback):
    return [step for step, report in callback.reports.items() if any(v.is_collapse for v in report.verdicts)]


def test_a_transient_is_measured_and_not_told(course):
    """The verdict on a single measurement is a collapse early on, without a warm-up; the loss falls all the same."""
    callback, told, losses = course
    early = [step for step in collapsed_at(callback) if step < COLLAPSED[0]]
    assert early
    assert max(early) <= 30
    assert all(int(re.match(r"step (\d+)", sentence)[1]) >= COLLAPSED[0] for sentence in told)
    assert losses[50] < losses[20] - 0.2


def test_a_real_collapse_later_is_told_with_its_recovery_and_its_relapse(course):
    callback, told, _ = course
    beginnings = [
        "step 56 (since step 52): Layers 1-6: rank collapse (",
        "step 62: recovered from the rank collapse told before, since step 58.",
        "step 68 (since step 64): relapse: Layers 1-6: rank collapse (",
    ]
    assert [sentence[: len(own)] for sentence, own in zip(told, beginnings, strict=True)] == beginnings
    assert "a warm-up of it" in told[0]  # the run has none
    assert callback.first_seen == {"rank collapse": 52}  # and not the transient
