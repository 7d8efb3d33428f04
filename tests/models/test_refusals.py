"""Models outside the table: converted after a trial run, or refused with a sentence and left as they were."""

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.models.builders import GROUPED, IMAGE, SPECIAL, TEXT, batch, build, logits

T5 = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 32, "vocab_size": 40}
GEMMA = {**TEXT, **SPECIAL, **GROUPED, "head_dim": 8}
FULL = ["full_attention"] * 4

REFUSED = {
    "T5": (
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
        "T5ForConditionalGeneration cannot be converted: its cross-attention has other keys than its self-attention.",
    ),
    "mixed sliding windows in a known family": (
        lambda: hf.Qwen2ForCausalLM(
            hf.Qwen2Config(**TEXT, **SPECIAL, **GROUPED, layer_types=["sliding_attention", *FULL[1:]], sliding_window=4)
        ),
        "Qwen2ForCausalLM cannot be converted: its layers mix full_attention and sliding_attention, whose caches hold "
        "different keys.",
    ),
    "ALBERT": (
        lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**TEXT, embedding_size=16)),
        "AlbertForMaskedLM cannot be converted: encoder.albert_layer_groups.0.albert_layers.0.attention runs more than "
        "once in a forward pass, so its layers cannot be told apart.",
    ),
    "cross-attention in a known family": (
        lambda: hf.BertLMHeadModel(hf.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)),
        "BertLMHeadModel cannot be converted: its cross-attention has other keys than its self-attention.",
    ),
    "audio": (
        lambda: hf.Wav2Vec2Model(
            hf.Wav2Vec2Config(
                hidden_size=32,
                num_hidden_layers=1,
                num_attention_heads=4,
                intermediate_size=32,
                num_conv_pos_embedding_groups=4,
            )
        ),
        "Wav2Vec2Model cannot be converted: its input 'input_values' is neither plain token ids nor images, so it "
        "cannot be tested.",
    ),
}


def footprint(model):
    """Everything conversion could leave behind."""
    return {
        path: (
            sorted(vars(module)),
            [function.__name__ for function in module._forward_hooks.values()],
            [function.__name__ for function in module._forward_pre_hooks.values()],
            module.training,
        )
        for path, module in model.named_modules()
    }, model.config.to_dict() | {"attention": model.config._attn_implementation}


@pytest.mark.parametrize(("builder", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_converted_is_refused_and_left_alone(builder, sentence):
    model = builder().train()
    before, random = footprint(model), torch.get_rng_state()
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared below
        uc.convert(model)
    assert str(error.value) == sentence
    assert footprint(model) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_a_block_that_serves_two_layers_is_refused():
    model = build("gpt2")
    model.transformer.h[2] = model.transformer.h[0]
    before = footprint(model)
    with pytest.raises(
        ValueError, match=r"h\.0\.attn and h\.2\.attn share one attention, so its layers cannot be told"
    ):
        uc.convert(model)
    assert footprint(model) == before


def test_an_output_projection_that_serves_two_layers_is_refused():
    model = build("llama")
    model.model.layers[1].self_attn.o_proj = model.model.layers[0].self_attn.o_proj
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn and layers\.1\.self_attn share one output projection"):
        uc.convert(model)


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_another_attention_implementation_after_convert_is_noticed(name):
    """It would drop the inheritance and keep the skip."""
    model, inputs = build(name), batch(name)
    stock = logits(model, **inputs)
    wanted = logits(uc.convert(model, alpha=0.4, alpha_hidden=0.6), **inputs)
    model.set_attn_implementation("sdpa")
    sentence = r"was set to 'sdpa', which inherits no scores; call set_attn_implementation\('hopfield'\)"
    with pytest.raises(ValueError, match=sentence):
        model(**inputs)
    with pytest.raises(ValueError, match=sentence):
        uc.diagnose(model, inputs)
    model.set_attn_implementation("hopfield")
    assert torch.equal(logits(model, **inputs), wanted)
    model.set_attn_implementation("sdpa")
    assert torch.equal(logits(uc.restore(model), **inputs), stock)


def test_a_refused_second_conversion_leaves_the_first():
    model, inputs = uc.convert(build("gpt2"), alpha=0.4, alpha_hidden=0.6), batch("gpt2")
    wanted = logits(model, **inputs)
    model.hf_device_map = {"transformer.h.0": 0, "transformer.h.1": "cpu"}
    with pytest.raises(ValueError, match="it is spread over 0, cpu"):
        uc.convert(model, alpha=0.0, alpha_hidden=0.0)
    assert torch.equal(logits(model, **inputs), wanted)


def test_a_rule_that_could_not_be_saved_is_refused():
    class Alternating(uc.ScoreRule):
        def coefficients(self, n):
            return (0.0, 1.0) if n % 2 else (0.5, 0.5)

    with pytest.raises(ValueError, match="Alternating cannot be written to a config"):
        uc.convert(build("gpt2"), rule=Alternating("alternating", keep=0.5, take=0.5))


def test_numbers_of_numpy_can_be_saved(tmp_path):
    import numpy as np

    uc.convert(build("gpt2"), alpha=np.float32(0.5), alpha_hidden=np.float32(0.25)).save_pretrained(tmp_path)
    assert uc.from_pretrained(tmp_path).config.uncollapse["rule"]["keep"] == 0.25


def test_a_model_spread_over_devices_is_refused():
    model = build("gpt2")
    model.hf_device_map = {"transformer.h.0": 0, "transformer.h.1": "cpu"}
    with pytest.raises(ValueError, match="it is spread over 0, cpu; use one device"):
        uc.convert(model)


def test_a_plain_module_needs_an_example():
    with pytest.raises(ValueError, match=r"Linear is no transformers model, .*: give a batch as example="):
        uc.convert(torch.nn.Linear(2, 2))


def test_bad_settings_are_refused_before_anything_changes():
    model = build("gpt2")
    before = footprint(model)
    for options, sentence in [
        ({"alpha": 1.5}, r"alpha must lie in \[0, 1\], got 1.5"),
        ({"alpha_hidden": -1}, r"alpha_hidden must lie in \[0, 1\], got -1"),
        ({"start": "warm"}, "start must be one of zero, raw"),
        ({"backend": "fast"}, "backend must be one of auto, reference"),
        ({"rule": "revit"}, "rule must be ScoreRule"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            uc.convert(model, **options)
    assert footprint(model) == before


OTHERS = {
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**GEMMA)),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**TEXT, **SPECIAL)),
    "electra": lambda: hf.ElectraForMaskedLM(hf.ElectraConfig(**TEXT, embedding_size=32)),
    "ijepa": lambda: hf.IJepaForImageClassification(hf.IJepaConfig(**IMAGE)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_converted_after_a_trial_run(name):
    torch.manual_seed(0)
    model = OTHERS[name]().double().eval()
    inputs = batch("vit") if name == "ijepa" else batch("gpt2")
    before, stock = footprint(model), logits(model, **inputs)
    torch.testing.assert_close(
        logits(uc.convert(model, alpha=0.0, alpha_hidden=0.0), **inputs), stock, rtol=1e-9, atol=1e-9
    )
    assert not torch.allclose(logits(uc.convert(model, alpha=0.5, alpha_hidden=0.0), **inputs), stock, atol=1e-6)
    uc.restore(model)
    assert torch.equal(logits(model, **inputs), stock)
    assert footprint(model) == before
