"""A diagnosed model is as before: hooks, attributes, attention implementation, modes, random state, outputs."""

import random

import numpy as np
import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.models.builders import batch, build


def fingerprint(model):
    """All that a pass could leave behind on a model."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")
    modules = {
        name: (
            module.training,
            {kind: list(getattr(module, kind).items()) for kind in hooks},
            {key: id(value) for key, value in vars(module).items() if key != "training"},
        )
        for name, module in model.named_modules()
    }
    configs = {name: m.config._attn_implementation for name, m in model.named_modules() if hasattr(m, "config")}
    return modules, configs, model.config.to_dict(), [p.grad for p in model.parameters()]


def random_states():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def mixed_modes(model):
    """Some modules in training mode and some not, as in fine-tuning with frozen layers."""
    model.train()
    frozen = next(module for name, module in model.named_modules() if name.endswith(".1"))
    frozen.eval()
    return model


def broken_after_one(inputs, error):
    torch.rand(3)  # a data loader that draws
    yield inputs
    raise error


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("attention", ["sdpa", "eager", "converted"])
@pytest.mark.parametrize("error", [None, StoppedError(), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_the_model_is_left_as_found(name, error, attention):
    model = mixed_modes(build(name))
    uc.convert(model) if attention == "converted" else model.set_attn_implementation(attention)
    before, states, inputs = fingerprint(model), random_states(), batch(name)
    if error is None:
        uc.diagnose(model, inputs)
    else:
        with pytest.raises(type(error)):
            uc.diagnose(model, broken_after_one(inputs, error))
    assert fingerprint(model) == before
    assert random_states() == states


@pytest.mark.parametrize("error", [StoppedError(), KeyboardInterrupt()])
def test_an_exception_inside_a_block_leaves_no_trace_either(error):
    model = mixed_modes(build("gpt2"))

    def fail(*_):
        raise error

    handle = model.transformer.h[2].mlp.register_forward_pre_hook(fail)
    before = fingerprint(model)
    with pytest.raises(type(error)):
        uc.diagnose(model, batch("gpt2"))
    assert fingerprint(model) == before
    handle.remove()
    assert uc.diagnose(model, batch("gpt2")).missing == {}  # and the next pass is not disturbed


@pytest.mark.parametrize("convert", [False, True])
def test_outputs_are_the_same_bit_for_bit(convert):
    model, inputs = build("llama"), batch("llama")
    if convert:
        uc.convert(model)
    with torch.no_grad():
        before = model(**inputs).logits
        uc.diagnose(model, inputs)
        assert torch.equal(model(**inputs).logits, before)


def test_parts_with_different_attention_implementations_keep_them():
    text = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = hf.CLIPConfig(
        text_config={**text, "vocab_size": 20, "max_position_embeddings": 8, "eos_token_id": 1},
        vision_config={**text, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    model = hf.CLIPModel(config).eval()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    before = fingerprint(model)
    inputs = {"input_ids": torch.randint(2, 20, (2, 6)), "pixel_values": torch.rand(2, 3, 8, 8)}
    uc.diagnose(model, inputs)
    assert fingerprint(model) == before


def test_a_pass_needs_no_gradients_and_leaves_none():
    model = build("gpt2").train()
    uc.diagnose(model, batch("gpt2"))
    model(**batch("gpt2")).logits.sum().backward()
    assert all(p.grad is not None for p in model.transformer.h.parameters())
