"""Stochastic depth of a Hugging Face ViT: whole branches, in training only, leaving no trace in what is saved."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import uncollapse as uc
from tests.models.builders import batch, build, logits
from uncollapse.training.drop_path import add_drop_path, remove_drop_path


@pytest.fixture(params=["vit", "deit"])
def name(request):
    return request.param


def hidden(model, name, seed=0, **kwargs):
    torch.manual_seed(seed)
    with torch.no_grad():
        return model(**batch(name, **kwargs), output_hidden_states=True).hidden_states


def test_off_in_evaluation_and_at_rate_zero_and_gone_when_removed(name):
    model = build(name)
    before = hidden(model, name)[-1]
    keys = list(model.state_dict())
    add_drop_path(model, 0.5)
    assert torch.equal(hidden(model, name)[-1], before)
    assert list(model.state_dict()) == keys
    model.train()
    assert not torch.equal(hidden(model, name)[-1], before)
    add_drop_path(model, 0.0)
    assert torch.equal(hidden(model, name)[-1], before)
    add_drop_path(model, 0.5)
    remove_drop_path(model)
    assert torch.equal(hidden(model, name)[-1], before)
    assert not any("_drop_path_rate" in vars(module) for module in model.modules())


@pytest.mark.parametrize("converted", ["stock", "converted first", "converted last"])
def test_each_sample_loses_whole_branches_and_what_stays_is_scaled(name, converted):
    """Of the last block's rate 0.5: its change is one of 0, 2 attention, 2 MLP (of what the attention gave), both."""
    model = build(name)
    if converted == "converted first":
        uc.convert(model, alpha=0.5)
    add_drop_path(model, 0.5)
    if converted == "converted last":
        uc.convert(model, alpha=0.5)
    model.train()
    block = model.base_model.layers[-1]
    seen = {}
    block.register_forward_hook(lambda module, args, output: seen.update(x=args[0], out=output))
    block.attention.register_forward_hook(lambda module, args, output: seen.update(attention=output[0]))
    block.mlp.register_forward_hook(lambda module, args, output: seen.update(mlp=output))
    hidden(model, name, rows=24)
    torch.testing.assert_close(seen["out"], seen["x"] + seen["attention"] + seen["mlp"])
    with torch.no_grad():
        remove_drop_path(model)
        kept = {key: seen[key] for key in ("x", "attention", "mlp")}
        mlp = block.mlp(block.layernorm_after(kept["x"] + kept["attention"]))
    dropped = {key: (kept[key] == 0).flatten(1).all(1) for key in ("attention", "mlp")}
    for key in dropped:
        assert 0 < int(dropped[key].sum()) < 24  # 2 * 0.5 ** 24 by chance, and the seed is fixed
    torch.testing.assert_close(kept["mlp"][~dropped["mlp"]], 2.0 * mlp[~dropped["mlp"]])
    assert (dropped["attention"] != dropped["mlp"]).any()


def test_a_dropped_attention_takes_the_visible_skip_with_it():
    model = uc.convert(build("vit"), alpha=0.9)
    add_drop_path(model, 0.5)
    model.train()
    out = {}
    block = model.base_model.layers[-1]
    block.attention.register_forward_hook(lambda module, args, output: out.update(branch=output[0]))
    block.attention.o_proj.register_forward_hook(lambda module, args, output: out.update(mixed=output))
    hidden(model, "vit", rows=24)
    dropped = (out["branch"] == 0).flatten(1).all(1)
    torch.testing.assert_close(out["branch"][~dropped], 2.0 * out["mixed"][~dropped])
    assert dropped.any()
    assert (out["mixed"][dropped] != 0).any()


def test_the_mean_over_many_draws_is_the_branch():
    model = build("vit")
    clean = hidden(model, "vit", rows=1)
    add_drop_path(model, 0.3)
    for block in model.base_model.layers[:-1]:
        remove_drop_path(block)
    last = model.base_model.layers[-1]
    remove_drop_path(last.mlp)
    model.train()
    seen = []
    last.attention.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    torch.manual_seed(0)
    with torch.no_grad():
        last(clean[-2].expand(4000, -1, -1))
        remove_drop_path(model)
        exact = last.attention(last.layernorm_before(clean[-2]))[0]
    # the mean of 4,000 draws of Bernoulli(0.7)/0.7 is 1 within 0.01 (one deviation); 0.05 is five
    torch.testing.assert_close(seen[0].mean(0, keepdim=True), exact, rtol=0.05, atol=1e-9)


def test_copies_and_pickles_keep_it_and_can_lose_it():
    model = build("vit")
    add_drop_path(model, 0.5)
    model.train()

    def drawn(model):
        torch.manual_seed(0)
        return logits(model, **batch("vit"))

    expected = drawn(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(drawn(other), expected)
        remove_drop_path(other)
        assert not torch.equal(drawn(other), expected)
    assert torch.equal(drawn(model), expected)


def test_gradients_under_checkpointing_are_those_without():
    model = build("vit").train()
    add_drop_path(model, 0.5)

    def gradients():
        torch.manual_seed(3)
        model.zero_grad()
        model(**batch("vit", rows=6)).logits.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for a, b in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(a, b)


def test_other_models_and_rates_are_refused():
    with pytest.raises(ValueError, match="made for the model types vit, deit, got 'gpt2'"):
        add_drop_path(build("gpt2"), 0.1)
    with pytest.raises(ValueError, match="at least 0 and below 1, got 1"):
        add_drop_path(build("vit"), 1.0)
