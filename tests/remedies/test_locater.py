"""LocAteR: the penalty is the paper's, its gradient the corrected one, and it acts once an update."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from hypothesis import given, settings
from hypothesis import strategies as st

import uncollapse as uc
from tests.models.builders import BUILDERS, build
from tests.remedies.locater_training import KAPPAS, train, train_by_hand, weights
from uncollapse.models.families import query_key_weights
from uncollapse.remedies.locater import add_gradient

LARGE = {name: 100 * kappa for name, kappa in KAPPAS.items()}  # so that they count after a division by tokens


def formed(model, kappa_scale, kappa_mean) -> torch.Tensor:
    """The penalty (N, H) with every W = W_Q^T W_K (M x M) written out."""
    table = []
    for layer in query_key_weights(model):
        share = len(layer.query) // len(layer.key)
        matrices = [query.T @ layer.key[h // share] for h, query in enumerate(layer.query)]
        table.append([kappa_scale * (w.T @ w).trace() + kappa_mean * (w.trace() - 1) ** 2 for w in matrices])
    return torch.stack([torch.stack(row) for row in table])


@pytest.mark.parametrize("name", BUILDERS)
def test_penalty_and_gradient_are_those_of_the_formed_matrices(name):
    """Also where weights are fused, transposed or shared by groups of heads."""
    model = build(name)
    table = formed(model, 0.3, 0.7)
    wanted = torch.autograd.grad(table.sum(), list(model.parameters()), allow_unused=True)
    penalty = uc.locater_penalty(model, 0.3, 0.7)
    got = torch.autograd.grad(penalty, list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(uc.locater_penalty(model, 0.3, 0.7, reduction="none"), table)
    torch.testing.assert_close(penalty, table.sum())
    assert any(gradient is not None for gradient in wanted)
    for mine, its in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, its)


LAYOUTS = {  # how a gradient may lie in memory, from a copy of it
    "as the parameter": torch.clone,
    "transposed": lambda gradient: gradient.T.contiguous().T,
    "in a bucket": lambda gradient: torch.cat([torch.zeros(3).double(), gradient.flatten()])[3:].view_as(gradient),
    "none yet": lambda gradient: None,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BUILDERS)
def test_what_is_added_to_the_gradients_is_the_gradient_of_the_penalty(name, layout):
    model = build(name)
    parameters = [p for p in model.parameters() if p.dim() == 2]
    before = {p: torch.zeros_like(p) if layout == "none yet" else torch.randn_like(p) for p in parameters}
    for parameter, gradient in before.items():
        parameter.data = LAYOUTS["in a bucket"](parameter.data)
        parameter.grad = LAYOUTS[layout](gradient)
    wanted = torch.autograd.grad(uc.locater_penalty(model, 0.3, 0.7), parameters, allow_unused=True)
    terms = add_gradient(model, 0.3, 0.7)
    torch.testing.assert_close(terms.penalty, uc.locater_penalty(model, 0.3, 0.7, reduction="none"))
    for parameter, gradient in zip(parameters, wanted, strict=True):
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, before[parameter] + gradient)
        else:
            assert parameter.grad is None or torch.equal(parameter.grad, before[parameter])


def test_short_weights_get_the_gradient_that_float32_gives():
    model = build("gpt2").float()
    short = copy.deepcopy(model).bfloat16()
    model.load_state_dict(short.state_dict())  # the same numbers, all of which float32 has
    for its in (model, short):
        add_gradient(its, 0.3, 0.7)
    for path, parameter in short.named_parameters():
        if parameter.grad is not None:
            wanted = model.get_parameter(path).grad
            torch.testing.assert_close(parameter.grad.float(), wanted, rtol=2**-8, atol=0)  # rounded once


def test_a_parametrised_weight_is_refused():
    model = build("bert")
    torch.nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[1].attention.self.query)
    with pytest.raises(ValueError, match=r"attention.self.query is computed from others \(a parametrisation\)"):
        add_gradient(model, 0.1, 0.2)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 3), st.floats(0, 3))
def test_the_gradient_is_the_corrected_formula(seed, kappa_scale, kappa_mean):
    """2 k1 W_K W_K^T W_Q + 2 k2 (tr W - 1) W_K, and likewise for W_K; the paper prints a further factor tr W / 2."""
    model = build("bert", seed=seed % 7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5 + (seed % 5) / 4)
    layer = query_key_weights(model)[1]
    q, k = layer.query.detach(), layer.key.detach()
    slack = ((q * k).sum(dim=(1, 2), keepdim=True) - 1) * 2 * kappa_mean
    add_gradient(model, kappa_scale, kappa_mean)
    attention = model.bert.encoder.layer[1].attention.self
    torch.testing.assert_close(
        attention.query.weight.grad.view_as(q), 2 * kappa_scale * (k @ k.mT) @ q + slack * k, rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(
        attention.key.weight.grad.view_as(k), 2 * kappa_scale * (q @ q.mT) @ k + slack * q, rtol=1e-9, atol=1e-9
    )


def test_descent_on_the_penalty_alone_ends_below_a_trace_of_one():
    """At tr W = kappa_mean / (kappa_mean + kappa_scale / D), the minimum for matrices of rank D."""
    model = build("bert")
    model.bert.encoder.layer = model.bert.encoder.layer[:1]
    optimizer = torch.optim.LBFGS([p for p in model.parameters() if p.dim() == 2], line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = uc.locater_penalty(model, 0.8, 0.5)
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)
    trace = uc.locater_penalty(model, 0.0, 1.0, reduction="none").sqrt()  # 1 - tr W
    size = 8
    torch.testing.assert_close(1 - trace, torch.full_like(trace, 0.5 / (0.5 + 0.8 / size)), rtol=1e-3, atol=0)


def test_accumulation_does_not_change_the_result(tmp_path):
    """Four micro-batches give what one batch gives: the penalty counts once an update."""
    whole, parts = train(tmp_path / "1", 16), train(tmp_path / "4", 4, accumulation=4)
    same(weights(parts.model), weights(whole.model))
    none = train(tmp_path / "0", 16, callbacks=[])
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (weights(none.model)[name] - weights(whole.model)[name]).abs().max() > 1e-3  # it did something


@pytest.mark.parametrize("accumulation", [1, 4])
def test_normalisation_by_tokens_divides_by_those_of_the_update(accumulation, tmp_path):
    """What fairseq does to a penalty in its criterion: the sum over tokens and the penalty are divided alike."""
    tokens = 16 * 11  # rows and length
    divided = uc.LocaterCallback(**{name: kappa / tokens for name, kappa in LARGE.items()})
    wanted = train(tmp_path / "divided", 16, callbacks=[divided])
    by_tokens = uc.LocaterCallback(**LARGE, normalisation="tokens")
    got = train(tmp_path / "tokens", 16 // accumulation, accumulation, callbacks=[by_tokens])
    same(weights(got.model), weights(wanted.model))
    one, other = (run.state.log_history[0]["locater/penalty"] for run in (got, wanted))
    assert one == pytest.approx(other)


def test_normalisation_by_tokens_leaves_out_padding(tmp_path):
    def padded(row):
        return {"input_ids": row, "labels": row, "attention_mask": (torch.arange(11) < 6).long()}

    found = []
    for callback in (
        uc.LocaterCallback(**LARGE, normalisation="tokens"),
        uc.LocaterCallback(**{name: kappa / (16 * 6) for name, kappa in LARGE.items()}),
    ):
        found.append(weights(train(tmp_path / "run", 16, callbacks=[callback], example=padded).model))
    same(*found)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_processes_do_not_change_the_result(kind, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*command, "-m", "tests.remedies.locater_training", kind, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = torch.load(tmp_path / "weights.pt", weights_only=True)
    if kind == "ddp":
        for normalisation in ("update", "tokens"):
            same(found[normalisation], weights(train(tmp_path / "one", 16, normalisation=normalisation).model))
    else:
        train_by_hand(one := build("llama").train())
        same(found["update"], weights(one))


def same(got, wanted):
    """LLaMA's RMSNorm runs in float32, so gradients of split batches agree to its rounding."""
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (got[name] - tensor).abs().max() <= 1e-6 * tensor.abs().max(), name


def test_numbers_are_in_the_trainers_own_line(tmp_path, monkeypatch):
    from transformers.integrations import integration_utils

    reported, later = [], []

    class Reporter(hf.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            reported.append(dict(logs))

    class Later(Reporter):
        def on_log(self, args, state, control, logs=None, **kwargs):
            later.append(dict(logs))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tensorboard", Reporter)
    model = build("llama")
    callbacks = [uc.LocaterCallback(**KAPPAS), Later()]
    trainer = train(tmp_path, 16, callbacks=callbacks, report_to="tensorboard", logging_steps=2)
    lines = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [line["step"] for line in lines] == [2]
    assert {"loss", "locater/penalty", "locater/trace", "locater/scale"} <= lines[0].keys()
    assert any("locater/penalty" in logs for logs in reported)
    assert "locater/penalty" in later[0]
    first = train(tmp_path, 16, max_steps=1).state.log_history[0]
    terms = add_gradient(model, **KAPPAS)  # of the weights before the first step
    assert first["locater/penalty"] == pytest.approx(uc.locater_penalty(model, **KAPPAS).item())
    assert first["locater/trace"] == pytest.approx(terms.trace.mean().item())
    assert first["locater/scale"] == pytest.approx(terms.scale.mean().item())


def test_frozen_weights_are_left_alone_and_missing_gradients_are_made():
    model = build("bert")
    attention = model.bert.encoder.layer[0].attention.self
    attention.key.weight.requires_grad_(False)
    add_gradient(model, 0.1, 0.2)
    assert attention.key.weight.grad is None
    assert attention.query.weight.grad.abs().max() > 0
    before = attention.query.weight.grad.clone()
    add_gradient(model, 0.1, 0.2)
    torch.testing.assert_close(attention.query.weight.grad, 2 * before)  # added, not set


def test_short_weights_are_summed_in_float32():
    exact = build("gpt2")
    short = copy.deepcopy(exact).bfloat16()
    rounded = copy.deepcopy(short).double()
    with torch.autocast("cpu", torch.bfloat16):
        penalty = uc.locater_penalty(short, 0.3, 0.7)
    assert penalty.dtype == torch.float32
    torch.testing.assert_close(penalty.double(), uc.locater_penalty(rounded, 0.3, 0.7), rtol=1e-5, atol=0)
    add_gradient(short, 0.3, 0.7)
    assert short.transformer.h[0].attn.c_attn.weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("clipped", [True, False])
def test_loss_scaling_is_undone_first(clipped):
    """float16's gradients are scaled by 2^16 until the Trainer clips or, if it does not, until the optimizer steps."""
    Accelerator(cpu=True)  # its state is asked for by its optimizers
    model = build("bert").float()
    wanted = copy.deepcopy(model)
    add_gradient(wanted, 0.1, 0.2)
    scaler = torch.amp.GradScaler("cpu")
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler.scale(0.0 * sum(p.sum() for p in model.parameters())).backward()
    if clipped:
        scaler.unscale_(inner)

    wrapped = AcceleratedOptimizer(inner, scaler=scaler)
    uc.LocaterCallback(0.1, 0.2).on_pre_optimizer_step(None, None, None, model=model, optimizer=wrapped)
    before = model.bert.encoder.layer[0].attention.self.query.weight.detach().clone()
    scaler.step(inner)
    moved = before - model.bert.encoder.layer[0].attention.self.query.weight
    gradient = wanted.bert.encoder.layer[0].attention.self.query.weight.grad
    torch.testing.assert_close(moved, gradient, rtol=1e-4, atol=1e-6)


def test_what_cannot_work_is_refused_with_a_sentence(tmp_path):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match=r"q_proj is wrapped by an adapter \(Linear\); merge the adapter first"):
        uc.locater_penalty(adapted, 0.1, 0.1)
    values = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["v_proj"]))
    with pytest.raises(ValueError, match="the query and key weights of every layer are frozen"):
        uc.LocaterCallback(0.1, 0.1).on_train_begin(hf.TrainingArguments(str(tmp_path)), None, None, model=values)
    with pytest.raises(ValueError, match="model type 'albert' are not known"):
        uc.locater_penalty(hf.AlbertModel(hf.AlbertConfig(hidden_size=64, num_attention_heads=4)), 0.1, 0.1)
    with pytest.raises(ValueError, match="expected a transformers model, or a module around one, got Linear"):
        uc.locater_penalty(torch.nn.Linear(2, 2), 0.1, 0.1)
    with pytest.raises(ValueError, match="kappa_scale must be a number that is not negative, got -1"):
        uc.LocaterCallback(-1, 0.1)
    with pytest.raises(ValueError, match='normalisation must be "update" or "tokens", got \'batch\''):
        uc.LocaterCallback(0.1, 0.1, normalisation="batch")
    by_tokens = uc.LocaterCallback(0.1, 0.1, normalisation="tokens")
    with pytest.raises(ValueError, match=r'"tokens" counts tokens of text, and ViT\w* takes pixel_values; use normal'):
        by_tokens.on_train_begin(hf.TrainingArguments(str(tmp_path)), None, None, model=build("vit"))
    with pytest.raises(ValueError, match="needs the number of tokens, which this Trainer does not count"):
        by_tokens.on_pre_optimizer_step(None, hf.TrainerState(), None, model=build("llama"))
    with pytest.raises(ValueError, match='reduction must be "sum" or "none", got \'mean\''):
        uc.locater_penalty(build("bert"), 0.1, 0.1, reduction="mean")
    flat = build("bert")
    query = flat.bert.encoder.layer[0].attention.self.query
    query.weight = torch.nn.Parameter(query.weight.detach().flatten()[:100])
    with pytest.raises(ValueError, match="is not whole here, as under FSDP1 or ZeRO-3"):
        uc.locater_penalty(flat, 0.1, 0.1)
