"""The loops in which models are trained: autocast, checkpointing, adapters, compilation, Accelerate, the Trainer."""

import copy
import warnings

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.diagnosis import oracle
from tests.diagnosis.compared import CLOSE
from tests.models.builders import batch, build
from tests.models.modules import build as build_plain
from tests.watching.loops import loss_of, sgd, train


def logits_of(model, inputs):
    """The largest logit of every head, from whole score matrices."""
    return [row["logit_max"] for seen in oracle.eager(model, [inputs]) for row in oracle.head_rows(seen)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_measured_once(reentrant):
    model, inputs = build("llama").train(), batch("llama", rows=2)
    wanted = logits_of(copy.deepcopy(model), inputs)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    model.enable_input_require_grads()
    optimizer = sgd(model)
    with uc.watch(model, optimizer, every=1) as watch:
        train(model, optimizer, [inputs])
    assert watch.heads["logit_max"].tolist() == pytest.approx(wanted, **CLOSE)
    assert set(watch.heads["sequences"]) == {2}
    assert set(watch.layers["batch"]) == {2}


def test_autocast_does_not_reach_the_statistics():
    model, inputs = build("gpt2").float().train(), batch("gpt2", rows=2)
    seen = {}

    def keep(module, args, kwargs, output):
        q, k, _ = module.c_attn(args[0] if args else kwargs["hidden_states"]).split(32, dim=2)
        q, k = (t.view(2, -1, 4, 8).transpose(1, 2).double() for t in (q, k))
        scores = q @ k.mT * 8**-0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores[:, :, 0] = -torch.inf  # the first row sees one key
        seen["largest"] = scores.masked_fill(hidden, -torch.inf).amax((0, 2, 3))

    handle = model.transformer.h[0].attn.register_forward_hook(keep, with_kwargs=True)
    with uc.watch(model, every=1) as watch, torch.autocast("cpu", torch.bfloat16):
        model(**inputs)
    handle.remove()
    got = watch.heads.query("layer == 1")["logit_max"].tolist()
    assert got == pytest.approx(seen["largest"].tolist(), rel=1e-6)  # of bfloat16 queries, in float32 arithmetic


def test_lora():
    peft = pytest.importorskip("peft")
    model, inputs = build("llama").train(), batch("llama", rows=2)
    wanted = logits_of(copy.deepcopy(model), inputs)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "k_proj"], r=2))
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad])
    with uc.watch(adapted, optimizer, every=1) as watch:
        train(adapted, optimizer, [inputs, inputs])
    first = watch.heads[watch.heads["step"] == 1]
    assert first["logit_max"].tolist() == pytest.approx(wanted, **CLOSE)
    assert watch.heads.groupby("step").size().tolist() == [16, 16]
    assert watch.updates["gradient_norm"].notna().all()
    ratios = watch.optimizer["update_ratio_query"]
    assert (ratios > 0).all()


def test_a_compiled_model_is_measured_on_a_part_of_the_batch_and_says_so():
    model, ids = build_plain("nanogpt")
    model = model.float().train()
    stock = copy.deepcopy(model)
    compiled = torch.compile(model, backend="eager")
    optimizer = sgd(model)
    with uc.watch(compiled, optimizer, every=1) as watch:
        train(compiled, optimizer, [ids])
    assert watch.notes == [
        "Measured on a part of the batch, run once more without gradients: the model is compiled, and what is compiled "
        "cannot be looked into."
    ]
    report = uc.diagnose(stock, ids, progress=False)
    assert watch.heads["logit_max"].tolist() == pytest.approx(report.heads["logit_max"].tolist(), rel=1e-5)


def test_a_compiled_transformers_model():
    model, inputs = build("gpt2").float().train(), batch("gpt2", rows=12)
    compiled = torch.compile(model, backend="eager")
    optimizer = sgd(model)
    states = []
    for watched in (False, True):
        twin = torch.compile(copy.deepcopy(model), backend="eager")
        optimizer = sgd(twin)
        torch.manual_seed(0)
        watch = uc.watch(twin, optimizer, every=2) if watched else None
        states.append((train(twin, optimizer, [inputs] * 3), torch.get_rng_state().tolist()))
    assert states[0] == states[1]
    assert set(watch.heads["sequences"]) == {8}
    assert "the model is compiled" in watch.notes[0]
    assert isinstance(compiled, torch.nn.Module)


def test_a_model_compiled_after_the_watch_began_is_told():
    model, ids = build_plain("nanogpt")
    model = model.float().train()
    optimizer = sgd(model)
    with uc.watch(model, optimizer, every=1), pytest.warns(UserWarning, match="compiled after the watch began"):
        train(torch.compile(model, backend="eager"), optimizer, [ids])


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = build("gpt2").float().train()
    model, optimizer = accelerator.prepare(model, sgd(model))
    with uc.watch(model, optimizer, every=1) as watch:
        for seed in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model(**batch("gpt2", seed=seed))))
                optimizer.step()
                optimizer.zero_grad()
    assert sorted(set(watch.heads["step"])) == [1, 2]
    assert set(watch.heads["sequences"]) == {4}  # both accumulated batches


def test_any_trainer(tmp_path):
    model = build("gpt2").float().train()
    rows = [{"input_ids": row, "labels": row} for row in batch("gpt2", rows=16)["input_ids"]]
    arguments = hf.TrainingArguments(
        str(tmp_path), max_steps=4, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True
    )
    trainer = hf.Trainer(model, arguments, train_dataset=rows)
    trainer.create_optimizer_and_scheduler(4)
    with uc.watch(model, trainer.optimizer, every=2) as watch:
        trainer.train()
    assert sorted(set(watch.heads["step"])) == [2, 4]
    assert watch.updates["loss"].notna().all()
    assert watch.updates["step"].tolist() == [1, 2, 3, 4]


def test_without_an_optimizer_forwards_are_counted():
    model, inputs = build("gpt2").train(), batch("gpt2")
    with uc.watch(model, every=3) as watch:
        for _ in range(7):
            model(**inputs)
            with torch.no_grad():
                model(**inputs)
    assert sorted(set(watch.heads["step"])) == [3, 6]
    assert watch.optimizer.empty
    assert watch.heads["qk_trace"].notna().all()


def test_entropy_collapse_is_told_with_its_remedies():
    model, inputs = build("gpt2").train(), batch("gpt2")
    with torch.no_grad():
        for block in model.transformer.h[:2]:
            block.attn.c_attn.weight.mul_(40.0)
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with uc.watch(model, every=1, on_warning=seen.append, detectors=["thresholds"]) as watch:
            for _ in range(5):
                model(**inputs)
    assert [news.kind for news in seen] == ["entropy collapse"]
    assert watch.warnings["sentence"].tolist() == [seen[0].sentence]
    assert seen[0].step == 3
    assert "What helps" in seen[0].sentence
