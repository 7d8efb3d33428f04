"""The three readings of the visible skip: what they are, what goes on working with each, and what is refused."""

import copy
import json
import pickle

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.models.builders import BUILDERS, NO_DROPOUT, SPECIAL, TEXT, batch, build, logits
from uncollapse.models.skip_free import remove_residuals

READINGS = ("stream", "normed", "replace")
POST_NORM = ("bert", "bert_decoder", "roberta", "distilbert")
ROUNDING = {"rtol": 1e-9, "atol": 1e-9}  # float64 through four layers
every_reading = pytest.mark.parametrize("skip", READINGS)


@pytest.mark.parametrize("name", POST_NORM)
def test_without_a_norm_before_attention_stream_and_normed_are_one(name):
    stream, normed = (logits(uc.convert(build(name), skip=skip), **batch(name)) for skip in ("stream", "normed"))
    assert torch.equal(stream, normed)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in (*POST_NORM, "dinov2")])
def test_with_a_norm_the_readings_differ(name):
    found = [logits(uc.convert(build(name), skip=skip), **batch(name)) for skip in READINGS]
    size = found[0].abs().max()
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (found[one] - found[other]).abs().max() > 0.01 * size


@every_reading
@pytest.mark.parametrize("name", ["gpt2", "llama", "vit", "gpt_neox"])
def test_checkpointed_gradients_equal_unchecked_ones(name, skip):
    gradients = []
    for checkpointing in (False, True):
        model = uc.convert(build(name), alpha=0.4, alpha_hidden=0.6, skip=skip).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model(**batch(name)).logits.square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **ROUNDING)


@every_reading
def test_compiled_fullgraph_equals_eager(skip):
    torch._dynamo.reset()
    model, inputs = uc.convert(build("gpt2"), skip=skip), batch("gpt2")
    wanted = logits(model, **inputs)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(logits(compiled, **inputs), wanted, **ROUNDING)


@every_reading
def test_cached_generation_equals_uncached(skip):
    model, ids = uc.convert(build("llama"), skip=skip), batch("llama")["input_ids"]
    how = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(ids, use_cache=True, **how), model.generate(ids, use_cache=False, **how))


@every_reading
@pytest.mark.parametrize("name", ["gpt2", "vit", "bert"])
def test_the_reading_survives_saving_copying_and_pickling_and_leaves_no_trace(name, skip, tmp_path):
    model, inputs = build(name), batch(name)
    stock, attributes = logits(model, **inputs), {path: set(vars(m)) for path, m in model.named_modules()}
    wanted = logits(uc.convert(model, alpha=0.3, skip=skip), **inputs)
    model.save_pretrained(tmp_path)
    loaded = uc.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert loaded.config.uncollapse["skip"] == skip
    torch.testing.assert_close(logits(loaded, **inputs), wanted, **ROUNDING)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(copied, **inputs), wanted)
    assert torch.equal(logits(uc.restore(model), **inputs), stock)
    assert attributes == {path: set(vars(m)) for path, m in model.named_modules()}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_checkpoint_of_version_0_1_loads_as_normed(tmp_path):
    model, inputs = uc.convert(build("gpt2"), skip="normed"), batch("gpt2")
    wanted = logits(model, **inputs)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["uncollapse"]["skip"]  # which version 0.1 did not write
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = uc.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(loaded, **inputs), wanted, **ROUNDING)

    config["uncollapse"]["skip"] = "sideways"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="skip must be one of stream, normed, replace, got 'sideways'"):
        uc.from_pretrained(tmp_path)


def test_a_model_outside_the_table_has_the_stream_of_its_blocks():
    """Without inherited scores a block can be run by hand."""
    torch.manual_seed(0)
    model = hf.GemmaForCausalLM(hf.GemmaConfig(**TEXT, **SPECIAL, num_key_value_heads=4, head_dim=8)).double().eval()
    ids, alpha = batch("llama")["input_ids"], 0.3
    first, second = model.model.layers[:2]
    seen: dict[str, torch.Tensor] = {}
    handles = [
        first.register_forward_pre_hook(lambda _, args: seen.update(first=args[0])),
        second.register_forward_pre_hook(lambda _, args: seen.update(second=args[0])),
        first.self_attn.o_proj.register_forward_hook(lambda _, args, out: seen.update(attention=out)),
    ]
    logits(model, input_ids=ids)
    x = seen["first"]
    attended = x + alpha * x + (1 - alpha) * seen["attention"]
    wanted = attended + first.mlp(first.post_attention_layernorm(attended))
    logits(uc.convert(model, alpha=alpha, alpha_hidden=0.0, skip="stream"), input_ids=ids)
    torch.testing.assert_close(seen["second"], wanted, rtol=1e-5, atol=1e-5)  # its norms run in float32
    for handle in handles:
        handle.remove()
    with pytest.raises(ValueError, match="skip='replace' is for the families gpt2, llama"):
        uc.convert(model, skip="replace")
    assert model.config.uncollapse["skip"] == "stream"  # as before


def refused(message, build_model, **settings):
    model = build_model()
    with pytest.raises(ValueError, match=message):
        uc.convert(model, **settings)
    assert not hasattr(model.config, "uncollapse")


def test_what_a_reading_cannot_have_is_refused():
    refused("skip must be one of stream, normed, replace, got 'none'", lambda: build("gpt2"), skip="none")
    refused("needs alpha > 0", lambda: build("gpt2"), rule=uc.ScoreRule.realformer(), skip="replace")
    refused("needs alpha > 0", lambda: build("gpt2"), alpha=0.0, skip="replace")
    refused("resid_pdrop is 0.1", lambda: hf.GPT2Model(hf.GPT2Config(n_layer=1, n_embd=8, n_head=2)), skip="replace")
    refused("cannot be exact in Dinov2", lambda: build("dinov2"), skip="replace")
    model = uc.convert(build("gpt2"), skip="replace")
    with pytest.raises(ValueError, match="needs alpha > 0"):
        uc.set_alpha(model, alpha=0.0)
    assert model.config.uncollapse["alpha"] == 0.5

    bare = hf.ViTModel(
        hf.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, **NO_DROPOUT)
    )
    remove_residuals(bare)
    with pytest.raises(ValueError, match="needs a residual to replace"):
        uc.convert(bare, skip="replace")


def test_attention_only_has_no_residual_to_replace():
    with pytest.raises(ValueError, match="AttentionOnly has none"):
        uc.AttentionOnly(2, 8, 2, skip="replace")
    with pytest.raises(ValueError, match="skip must be one of"):
        uc.AttentionOnly(2, 8, 2, skip="other")
    x = torch.randn(1, 5, 8)
    torch.manual_seed(0)
    stream = uc.AttentionOnly(2, 8, 2, alpha=1.0, layer_norm=True)
    torch.testing.assert_close(stream(x)[-1], x)  # alpha = 1 keeps the tokens, not what the norm makes of them
    normed = uc.AttentionOnly(2, 8, 2, alpha=1.0, layer_norm=True, skip="normed")
    assert (normed(x)[-1] - x).abs().max() > 0.1
