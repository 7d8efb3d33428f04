"""Converted models equal the definition: logits and every parameter's gradient, against plain torch."""

import pytest
import torch
from torch.func import functional_call

import uncollapse as uc
from tests.models.builders import batch, build
from tests.models.plain import PLAIN
from uncollapse.models.families import FAMILIES

SETTINGS = [  # alpha, alpha', start, skip
    (0.5, 0.5, "zero", "stream"),
    (0.5, 0.5, "zero", "normed"),
    (0.5, 0.5, "zero", "replace"),
    (0.2, 0.9, "raw", "stream"),
    (0.2, 0.9, "raw", "replace"),
    (0.3, 0.0, "zero", "normed"),
    (0.0, 0.7, "raw", "stream"),
    (0.0, 0.0, "zero", "stream"),
]
# float64 through four layers; transformers computes RMSNorm in float32 whatever the model's dtype.
TOLERANCE = dict.fromkeys(PLAIN, 1e-9) | dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), 2e-5)
NOT_REPLACED = ("dinov2",)  # LayerScale lies between W_O and the block's sum
assert set(PLAIN) == set(FAMILIES)  # a new family comes with its definition


@pytest.mark.parametrize(("alpha", "alpha_hidden", "start", "skip"), SETTINGS)
@pytest.mark.parametrize("name", PLAIN)
def test_logits_and_gradients_equal_the_definition(name, alpha, alpha_hidden, start, skip):
    if skip == "replace" and name in NOT_REPLACED:
        with pytest.raises(ValueError, match="cannot be exact in Dinov2"):
            uc.convert(build(name), alpha=alpha, skip=skip)
        return
    model = uc.convert(build(name), alpha=alpha, alpha_hidden=alpha_hidden, start=start, skip=skip)
    (inputs,) = batch(name).values()
    weights = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}

    wanted = PLAIN[name](weights, model.config, inputs, alpha, alpha_hidden, start, skip)
    out = model(inputs).logits
    close = {"rtol": TOLERANCE[name], "atol": TOLERANCE[name]}
    torch.testing.assert_close(out, wanted, **close)

    probe = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(5))
    (out * probe).sum().backward()
    (wanted * probe).sum().backward()
    scale = max(p.grad.abs().max() for p in model.parameters() if p.grad is not None)
    for path, parameter in model.named_parameters():
        expected = weights[path].grad
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        expected = torch.zeros_like(got) if expected is None else expected
        assert (got - expected).abs().max() <= TOLERANCE[name] * scale, path


@pytest.mark.parametrize("name", PLAIN)
def test_inherited_scores_matter_in_these_models(name):
    """Guards the test above: each of alpha and alpha' changes these logits by far more than its tolerance."""
    (inputs,) = batch(name).values()
    stock = build(name)(inputs).logits
    for alpha, alpha_hidden in ((0.5, 0.0), (0.0, 0.5)):
        changed = uc.convert(build(name), alpha=alpha, alpha_hidden=alpha_hidden)(inputs).logits
        assert (changed - stock).abs().max() > 0.05 * stock.abs().max()


def test_the_model_can_be_called_functionally():
    model = uc.convert(build("gpt2"))
    (inputs,) = batch("gpt2").values()
    doubled = {name: 2 * parameter for name, parameter in model.named_parameters()}
    out = functional_call(model, doubled, (inputs,)).logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(out, model(inputs).logits)
