"""Learned coefficients in converted models: parameters with gradients, in the checkpoint, in their own group."""

import copy
import pickle

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.models.builders import BUILDERS, batch, build
from uncollapse.attention.learned import raw_value, share
from uncollapse.models.learned import learned_parameters

LEARNED = {"alpha": "learned", "alpha_hidden": "learned"}
every = pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])


def logits(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits


def numbers(model):
    return dict(learned_parameters(model))


@pytest.mark.parametrize("value", [0.0, 1e-3, 0.1, 0.5, 0.9, 1.0])
def test_a_share_starts_where_it_should_and_can_leave_it(value):
    raw = torch.tensor([raw_value(value)]).requires_grad_()
    assert share(raw).item() == pytest.approx(value, abs=1e-6)
    (gradient,) = torch.autograd.grad(share(raw).sum(), raw)
    assert gradient.item() > 0.04
    assert 0.0 <= share(raw - 100).item() <= share(raw + 100).item() <= 1.0


@every
def test_one_parameter_a_head_and_layer_with_a_gradient(name):
    model, inputs = uc.convert(build(name), **LEARNED), batch(name)
    heads, layers = model.config.num_attention_heads, model.config.num_hidden_layers
    found = numbers(model)
    assert sorted(p.numel() for p in found.values()) == sorted([heads] * layers + [1] * layers)
    model(**inputs).logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in found.values())


@pytest.mark.parametrize("name", BUILDERS)
def test_a_start_at_zero_is_the_stock_model_and_restore_takes_everything_back(name):
    model, inputs = build(name), batch(name)
    stock, keys = logits(model, **inputs), list(model.state_dict())
    uc.convert(model, alpha="learned:0", alpha_hidden="learned:0")
    torch.testing.assert_close(logits(model, **inputs), stock, rtol=1e-5, atol=1e-6)  # RMSNorm runs in float32
    assert len(model.state_dict()) > len(keys)
    uc.restore(model)
    assert torch.equal(logits(model, **inputs), stock)
    assert list(model.state_dict()) == keys


@every
def test_the_gradient_is_that_of_the_numbers(name):
    """d loss / d alpha' by finite differences of fixed coefficients, which are the same in all heads and layers."""
    inputs, step = batch(name), 1e-4

    def loss(model):
        return model(**inputs).logits.square().mean()

    model = uc.convert(build(name), alpha="learned:0.3", alpha_hidden="learned:0.6")
    loss(model).backward()
    inner = torch.tensor(raw_value(0.6), dtype=torch.float64).requires_grad_()
    slope = torch.autograd.grad(share(inner), inner)[0]
    total = sum(p.grad.sum() for key, p in numbers(model).items() if key.endswith("hidden")) / slope
    up, down = (loss(uc.convert(build(name), alpha=0.3, alpha_hidden=0.6 + d)).item() for d in (step, -step))
    assert total.item() == pytest.approx((up - down) / (2 * step), rel=2e-2)  # RMSNorm and LayerNorm in float32


@every
def test_they_survive_saving_copying_and_pickling_and_plain_loading_ignores_them(name, tmp_path):
    model, inputs = uc.convert(build(name), **LEARNED), batch(name)
    with torch.no_grad():
        for n, parameter in enumerate(numbers(model).values()):
            parameter.add_(0.1 * n - 0.2)
    wanted = logits(model, **inputs)
    model.save_pretrained(tmp_path)
    loaded = uc.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(loaded, **inputs), wanted, rtol=1e-6, atol=1e-6)
    assert loaded.config.uncollapse == model.config.uncollapse
    assert torch.equal(logits(copy.deepcopy(model), **inputs), wanted)
    assert torch.equal(logits(pickle.loads(pickle.dumps(model)), **inputs), wanted)
    plain = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(plain, **inputs), logits(build(name), **inputs), rtol=1e-6, atol=1e-6)


def test_a_checkpoint_without_them_is_refused_by_name(tmp_path):
    model = uc.convert(build("gpt2"), **LEARNED)
    stock = {key: value for key, value in model.state_dict().items() if "uncollapse" not in key}
    model.save_pretrained(tmp_path, state_dict=stock)
    with pytest.raises(ValueError, match=r"learned coefficients, and h\.0\.attn\.uncollapse\.hidden .* not in the"):
        uc.from_pretrained(tmp_path)


def test_an_optimizer_moves_them_with_their_own_rate_and_without_decay():
    model, inputs = uc.convert(build("gpt2"), alpha="learned:0", alpha_hidden="learned:0"), batch("gpt2")
    groups = uc.parameter_groups(model, lr=1e-3, weight_decay=0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert {id(p) for p in groups[1]["params"]} == {id(p) for p in numbers(model).values()}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    optimizer = torch.optim.AdamW(groups)
    before = [share(p.detach()).clone() for p in numbers(model).values()]
    for _ in range(3):
        optimizer.zero_grad()
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        optimizer.step()
    after = [share(p.detach()) for p in numbers(model).values()]
    assert any((a > b).any() for a, b in zip(after, before, strict=True))
    assert all((a >= 0).all() for a in after)
    assert len(uc.parameter_groups(build("gpt2"), lr=1e-3)) == 1


def test_a_learned_gate_of_revit():
    model, inputs = uc.convert(build("gpt2"), rule=uc.ScoreRule.revit(gate="learned")), batch("gpt2")
    assert not any("h.0." in key for key in numbers(model))  # H_1 = S_1 has no gate
    fixed = uc.convert(build("gpt2"), rule=uc.ScoreRule.revit(0.5))
    torch.testing.assert_close(logits(model, **inputs), logits(fixed, **inputs), rtol=1e-9, atol=1e-9)
    model(**inputs).logits.square().mean().backward()
    assert all(p.grad.abs().max() > 0 for p in numbers(model).values())


def test_checkpointing_gives_the_same_gradients():
    results = []
    for saving in (False, True):
        model = uc.convert(build("gpt2"), **LEARNED).train()
        if saving:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model(**batch("gpt2")).logits.square().mean().backward()
        results.append([p.grad for p in model.parameters()])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_diagnose_shows_which_layers_inherit_and_how_much():
    model = uc.convert(build("gpt2"), alpha="learned:0.3", alpha_hidden="learned:0.6")
    with torch.no_grad():
        model.transformer.h[1].attn.uncollapse.hidden.fill_(raw_value(0.0))
    report = uc.diagnose(model, batch("gpt2"), progress=False)
    by_layer = report.layers.set_index("layer")
    assert by_layer["alpha_hidden"].tolist() == pytest.approx([0.6, 0.0, 0.6, 0.6], abs=1e-5)
    assert by_layer["alpha"].tolist() == pytest.approx([0.3] * 4, abs=1e-5)
    assert report.heads.groupby("layer")["alpha_hidden"].nunique().tolist() == [1] * 4
    assert "alpha_hidden" not in uc.diagnose(uc.convert(build("gpt2")), batch("gpt2"), progress=False).heads


def test_what_is_learned_is_not_set():
    model = uc.convert(build("gpt2"), alpha=0.2, alpha_hidden="learned")
    uc.set_alpha(model, alpha=0.4)
    with pytest.raises(ValueError, match="alpha_hidden of this model is learned"):
        uc.set_alpha(model, alpha_hidden=0.4)
    with pytest.raises(ValueError, match=r"alpha must be a number from 0 to 1, 'learned' or.*got 'often'"):
        uc.convert(build("gpt2"), alpha="often")
    with pytest.raises(ValueError, match="give numbers, or 'learned' for parameters"):
        uc.convert(build("gpt2"), rule=uc.ScoreRule.hopfield(torch.tensor(0.5)))
    with pytest.raises(ValueError, match="use convert or HopfieldAttention, or pass a tensor"):
        uc.hopfield_attention(*torch.randn(3, 1, 2, 5, 4), rule=uc.ScoreRule.hopfield("learned"))


def test_scores_in_two_bytes_travel_with_the_model(tmp_path):
    model, inputs = uc.convert(build("gpt2"), scores_dtype=torch.float16), batch("gpt2")
    wide = uc.convert(build("gpt2"))
    near, exact = logits(model, **inputs), logits(wide, **inputs)
    assert 0 < (near - exact).abs().max() < 1e-2 * exact.abs().max()
    model.save_pretrained(tmp_path)
    loaded = uc.from_pretrained(tmp_path, auto_class=hf.AutoModelForCausalLM, dtype=torch.float64).eval()
    assert torch.equal(logits(loaded, **inputs), near)
