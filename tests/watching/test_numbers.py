"""Each number of a watch equals one computed on the same training batch, in float64, from whole score matrices."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.diagnosis import oracle
from tests.diagnosis.compared import CLOSE, MIXING
from tests.models.builders import batch, build
from tests.models.modules import MODULES, Recursion
from tests.models.modules import build as build_plain
from tests.watching.loops import call, loss_of, sgd, train
from uncollapse.remedies.contents import read as read_remedy
from uncollapse_studies.calibration import architectures

LAYER_COLUMNS = ("residual_ratio", "residual_frobenius", "norm_mean", "cosine_mean", "cosine_aligned", "cosine_centred")


def check(watch, step, layers):
    """Compare the rows of a step with what the oracle saw."""
    of_step = watch.layers[watch.layers["step"] == step]
    assert of_step["layer"].tolist() == list(range(1, len(layers) + 1))
    for n, seen in enumerate(layers, start=1):
        wanted = oracle.layer_row(seen, decompositions=1)
        row = of_step[of_step["layer"] == n].iloc[0]
        for name in LAYER_COLUMNS:
            assert row[name] == pytest.approx(wanted[name], **CLOSE), (n, name)
        heads = watch.heads[(watch.heads["step"] == step) & (watch.heads["layer"] == n)]
        for (_, row), wanted in zip(heads.iterrows(), oracle.head_rows(seen), strict=True):
            for name, value in wanted.items():
                if name not in ("rho", "position"):
                    close = MIXING if name == "mixing_bound" else CLOSE
                    assert row[name] == pytest.approx(value, **close, nan_ok=True), (n, row["head"], name)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_transformers_models(name, attention):
    model = build(name).train()
    model.set_attn_implementation(attention)
    batches = [batch(name, rows=3, seed=seed) for seed in (1, 2)]
    optimizer = sgd(model)
    with uc.watch(model, optimizer, every=2) as watch:
        train(model, optimizer, batches[:1])
        before = copy.deepcopy(model)
        train(model, optimizer, batches[1:])
    check(watch, 2, oracle.eager(before, batches[1:]))
    assert set(watch.heads["step"]) == {2}
    assert watch.notes == []


def test_padding_is_left_out():
    model, inputs = build("llama").train(), batch("llama", rows=3)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, 5:] = mask[2, 9:] = 0
    inputs["attention_mask"] = mask
    wanted = oracle.eager(model, [inputs])
    with uc.watch(model, every=1) as watch:
        model(**inputs)
    check(watch, 1, wanted)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("converted", [False, True], ids=["stock", "converted"])
def test_plain_modules(name, converted):
    model, inputs = build_plain(name)
    recursion = Recursion(0.3, 0.6, "stream") if converted else Recursion(0.0, 0.0, "stream")
    with torch.no_grad():
        model.written_out(inputs, recursion)
    if converted:
        uc.convert(model, alpha=0.3, alpha_hidden=0.6, example=inputs)
    with uc.watch(model.train(), every=1) as watch:
        call(model, inputs)
    seen = [oracle.Seen() for _ in recursion.scores]
    for layer, stream, scores in zip(seen, recursion.streams, recursion.scores, strict=True):
        oracle.add(layer, stream, scores.masked_fill(scores == -torch.inf, -1e30))
    check(watch, 1, seen)


def scores_of(name, model, inputs):
    """What enters the softmax of a model with a cap, a bias or a sink, layer by layer, and what leaves its blocks."""
    tokens = []
    blocks = oracle.blocks(model)
    hooks = [b.register_forward_hook(lambda _m, _a, out: tokens.append(oracle_first(out))) for b in blocks]
    with torch.no_grad(), oracle.captured(torch.nn.functional, "softmax") as scores:
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return scores, tokens


def oracle_first(output):
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("name", ["gemma2", "t5_encoder", "gpt_oss"])
def test_caps_biases_and_sinks_are_in_the_numbers(name):
    model, inputs = special(name)
    scores, _ = scores_of(name, copy.deepcopy(model), inputs)
    with uc.watch(model.train(), every=1) as watch:
        model(**inputs)
    assert len(scores) == watch.layers["layer"].max()
    for n, layer in enumerate(scores, start=1):
        rows = layer.softmax(-1)
        entropies = torch.special.entr(rows).sum(-1)
        several = (layer > -1e20).sum(-1) >= 2
        for h in range(layer.shape[1]):
            got = watch.heads.query(f"layer == {n} and head == {h + 1}").iloc[0]
            seen = several[:, h]
            assert got["entropy_mean"] == pytest.approx(entropies[:, h][seen].mean().item(), abs=2e-5)
            top = layer[:, h].topk(2).values
            gaps = (top[..., 0] - top[..., 1])[seen]
            assert got["gap_mean"] == pytest.approx(gaps.mean().item(), rel=2e-5, abs=2e-5)
            if name != "gpt_oss":  # whose softmax is handed scores without their largest
                assert got["logit_max"] == pytest.approx(top[..., 0][seen].max().item(), rel=2e-5)


def special(name):
    """A model with a soft cap, a position bias or sinks, whose attention is far from uniform."""
    torch.manual_seed(0)
    if name == "t5_encoder":
        sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 40}
        model = hf.T5EncoderModel(hf.T5Config(**sizes, dropout_rate=0.0))
        model.set_attn_implementation("eager")
        inputs = {"input_ids": torch.randint(3, 40, (2, 9))}
    else:
        model, inputs = architectures.build(name), architectures.batch(name)
        model.set_attn_implementation("eager")
    for path, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.6) if parameter.dim() > 1 or "sink" in path else None
    return (model if name == "gpt_oss" else model.double()).eval(), inputs  # its experts run in float32 at most


def test_the_largest_logit_of_a_sink_is_among_the_logits():
    """It takes part in the softmax like a key."""
    model, inputs = special("gpt_oss")
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("sinks"):
                parameter.fill_(5000.0)
    with uc.watch(model.train(), every=1) as watch:
        model(**inputs)
    assert watch.heads["logit_max"].tolist() == pytest.approx([5000.0] * len(watch.heads))
    assert (watch.heads["sink_strongest"] > 0.99).all()


def test_many_sequences_are_sampled_and_the_largest_logit_is_exact():
    model = build("gpt2").train()
    inputs = batch("gpt2", rows=20)
    wanted = oracle.eager(model, [inputs])
    eight = oracle.eager(model, [{"input_ids": inputs["input_ids"][:8]}])
    with uc.watch(model, every=1) as watch:
        model(**inputs)
    assert set(watch.heads["sequences"]) == {8}
    assert set(watch.layers["batch"]) == {20}
    for n in range(4):
        heads = watch.heads[watch.heads["layer"] == n + 1]
        exact = [row["logit_max"] for row in oracle.head_rows(wanted[n])]
        assert heads["logit_max"].tolist() == pytest.approx(exact, **CLOSE)
        sampled = [row["entropy_mean"] for row in oracle.head_rows(eight[n])]
        assert heads["entropy_mean"].tolist() == pytest.approx(sampled, **CLOSE)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_what_an_update_does_to_the_weights(name):
    model, inputs = build(name).train(), batch(name, rows=2)
    optimizer = sgd(model, 0.05)
    old = copy.deepcopy(model)
    with uc.watch(model, optimizer, every=1) as watch:
        loss_of(model(**inputs)).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        optimizer.step()
    assert watch.optimizer["gradient_norm"].iloc[0] == pytest.approx(gradients.norm().item())
    assert watch.updates["gradient_norm"].iloc[0] == pytest.approx(gradients.norm().item())
    for n, (before, after) in enumerate(zip(oracle.blocks(old), oracle.blocks(model), strict=True), start=1):
        row = watch.optimizer[watch.optimizer["layer"] == n].iloc[0]
        was, _ = oracle.query_key_matrices(name, before)
        now, _ = oracle.query_key_matrices(name, after)
        heads = watch.heads[watch.heads["layer"] == n]
        assert heads["qk_trace"].tolist() == pytest.approx([np.trace(w) for w in was])
        assert heads["qk_scale"].tolist() == pytest.approx([(w**2).sum() for w in was])
        head = int(row["decomposed_head"]) - 1
        assert heads["qk_scale"].to_numpy().argmax() == head
        update = now[head] - was[head]
        singular = np.linalg.svd(update, compute_uv=False)
        share = singular[singular > 1e-12 * singular[0]] / singular.sum()
        size = 8  # of a head; an update has rank 16 at most
        assert row["spectral_entropy"] == pytest.approx(-(share * np.log(share)).sum() / np.log(2 * size), rel=1e-6)
        u, _, v = np.linalg.svd(was[head])
        aligned = u[:, 0] @ update @ v[0] / np.linalg.norm(update)
        assert row["update_alignment"] == pytest.approx(aligned, abs=1e-9)
    block = oracle.blocks(old)[0], oracle.blocks(model)[0]
    if name == "bert":
        old_query, new_query = (b.attention.self.query.weight.detach() for b in block)
        row = watch.optimizer.iloc[0]
        assert row["weight_norm_query"] == pytest.approx(old_query.norm().item(), rel=1e-6)
        ratio = (new_query - old_query).norm() / old_query.norm()
        assert row["update_ratio_query"] == pytest.approx(ratio.item(), rel=1e-5)


def test_accumulated_batches_are_one_measurement():
    whole, parts = build("gpt2").train(), build("gpt2").train()
    inputs = batch("gpt2", rows=4)
    rows = [{"input_ids": inputs["input_ids"][i : i + 2]} for i in (0, 2)]
    tables = []
    for model, batches in ((whole, [inputs]), (parts, rows)):
        optimizer = sgd(model)
        with uc.watch(model, optimizer, every=1) as watch:
            train(model, optimizer, batches, accumulate=len(batches))
        tables.append((watch.heads, watch.layers.drop(columns=["cosine_median"])))
    for one, other in zip(*tables, strict=True):
        pd.testing.assert_frame_equal(one, other, rtol=1e-5, atol=1e-6)
        assert set(one["step"]) == {1}


def test_nan_is_located():
    model, inputs = build("gpt2").train(), batch("gpt2")
    with torch.no_grad():
        oracle.blocks(model)[2].attn.c_attn.weight[0, 0] = float("nan")
    with uc.watch(model, every=1, on_warning=lambda news: None) as watch:
        model(**inputs)
    assert watch.layers["not_finite"].tolist() == [False, False, True, True]
    assert watch.warnings["kind"].tolist() == ["not finite"]
    assert watch.warnings["layers"].tolist() == [(3,)]


def test_rows_that_see_one_key_and_an_empty_batch_give_rows_without_numbers():
    model = build_plain("nanogpt")[0].train()
    with uc.watch(model, every=1) as watch:
        model(torch.zeros(1, 1, dtype=torch.long))  # no row has two keys
        model(torch.zeros(0, 5, dtype=torch.long))
    assert watch.heads["logit_max"].isna().all()
    assert watch.layers["residual_ratio"].isna().all()
    assert set(watch.heads["step"]) == {1, 2}


@pytest.mark.parametrize("family", ["llama", "bert", "plain"])
@pytest.mark.parametrize("remedy", ["soft_cap(cap=2)", "sink(start=1)"])
def test_caps_and_sinks_of_remedies_are_in_the_numbers(family, remedy):
    """Against the same model whose attention is written out: a cap bounds the logits, a sink is one more key."""
    (name, settings), *_ = read_remedy(remedy)
    model, inputs = sharp(family)
    stock = uc.diagnose(copy.deepcopy(model), inputs, progress=False).heads
    uc.apply(model, name, example=inputs, **settings)
    watch = uc.watch(model.train(), every=1)
    model(**inputs) if isinstance(inputs, dict) else model(inputs)
    watch.close()
    found = uc.diagnose(model.eval(), inputs, progress=False).heads
    assert found["entropy_mean"].tolist() == pytest.approx(watch.heads["entropy_mean"].tolist(), abs=1e-5)
    first = stock["layer"] == 1  # of whose queries and keys the remedy changes nothing
    if name == "soft_cap":
        assert stock.loc[first, "logit_max"].max() > 3
        wanted = 2 * np.tanh(stock.loc[first, "logit_max"] / 2)
        assert found.loc[first, "logit_max"].tolist() == pytest.approx(wanted.tolist(), rel=1e-5)
        assert found["logit_max"].max() <= 2
    else:
        assert found.loc[first, "logit_max"].tolist() == pytest.approx(
            stock.loc[first, "logit_max"].clip(lower=1.0).tolist(), rel=1e-5
        )
        assert (found.loc[first, "entropy_mean"] - stock.loc[first, "entropy_mean"]).abs().max() > 1e-3


def sharp(family):
    """A model whose attention is far from uniform, and its inputs."""
    torch.manual_seed(0)
    if family == "plain":
        layer = torch.nn.TransformerEncoderLayer(16, 4, 16, dropout=0.0, batch_first=True)
        model, inputs = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 9, 16)
    else:
        model, inputs = build(family), batch(family)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=0.6)
    return model.eval(), inputs
