"""Skip-free ViT blocks: the branches replace the tokens, and a saved model is loaded as it was."""

import pytest
import torch

import uncollapse as uc
from tests.models.builders import batch, build
from tests.training.tiny import IMAGES
from uncollapse.models.skip_free import SkipFreeLayer, remove_residuals


def tokens(model, inputs):
    with torch.no_grad():
        return model(**inputs, output_hidden_states=True).hidden_states


def test_a_block_is_attention_then_mlp_and_nothing_is_added():
    model, inputs = build("vit"), batch("vit")
    remove_residuals(model)
    before, after = tokens(model, inputs)[:2]
    block = model.vit.layers[0]
    with torch.no_grad():
        attended, _ = block.attention(block.layernorm_before(before))
        torch.testing.assert_close(block.mlp(block.layernorm_after(attended)), after)


@pytest.mark.parametrize("converted", [False, True])
def test_a_saved_model_is_loaded_as_it_was(converted, tmp_path):
    model, inputs = build("vit"), batch("vit")
    stock = tokens(model, inputs)[-1]
    if converted:
        uc.convert(model, alpha=0.5, alpha_hidden=0.5)
    remove_residuals(model)
    wanted = tokens(model, inputs)[-1]
    assert not torch.allclose(wanted, stock, rtol=0.1)
    model.save_pretrained(tmp_path)
    loaded = uc.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(tokens(loaded, inputs)[-1], wanted)


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="residual: false is for ViT only; a GPT2LMHeadModel has no ViT block"):
        remove_residuals(build("gpt2"))


def test_a_run_trained_without_residuals_is_trained_on_without_them(tmp_path):
    run = uc.train(IMAGES | {"residual": False}, tmp_path / "first", progress=False, steps=1)
    assert {type(layer) for layer in run.model.vit.layers} == {SkipFreeLayer}
    further = IMAGES | {"model": str(tmp_path / "first")}
    with pytest.raises(ValueError, match="was trained without block residuals; train it on with --residual false"):
        uc.train(further, tmp_path / "refused", progress=False, steps=1)
    uc.train(further | {"residual": False}, tmp_path / "second", progress=False, steps=1)
