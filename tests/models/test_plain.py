"""Any PyTorch module: found by a trial forward, converted, and equal to the recursion written into it by hand."""

import copy
import json
import pickle

import pytest
import torch

import uncollapse as uc
from tests.models.modules import LAYERS, MODULES, Biased, Recursion, build, first, vectors
from uncollapse.models.plain import LayerPlan, Plan, Stack

READINGS = ("stream", "normed", "replace")
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # float64 through four layers
every_module = pytest.mark.parametrize("name", MODULES)
every_reading = pytest.mark.parametrize("skip", READINGS)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@every_reading
@every_module
def test_outputs_and_gradients_are_those_of_the_recursion(name, skip):
    if (name, skip) == ("timm_layer_scale", "replace"):
        pytest.skip("LayerScale lies between W_O and the sum; test_refusals has the sentence")
    model, batch = build(name)
    wanted = model.written_out(batch, Recursion(0.3, 0.6, skip))
    wanted_gradients = gradients(model, wanted.square().sum())
    uc.convert(model, alpha=0.3, alpha_hidden=0.6, skip=skip, example=batch)
    got = first(model(batch))
    torch.testing.assert_close(got, wanted, **ROUNDING)
    for one, other in zip(gradients(model, got.square().sum()), wanted_gradients, strict=True):
        torch.testing.assert_close(one, other, **ROUNDING)


@every_reading
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_product_with_scale_and_bias_in_one_call(beta, skip):
    torch.manual_seed(1)
    model, x = Biased(beta).double().eval(), vectors().double()
    wanted = model.written_out(x, Recursion(0.3, 0.6, skip))
    wanted_gradients = gradients(model, wanted.square().sum())
    got = uc.convert(model, alpha=0.3, alpha_hidden=0.6, skip=skip, example=x)(x)
    torch.testing.assert_close(got, wanted, **ROUNDING)
    for one, other in zip(gradients(model, got.square().sum()), wanted_gradients, strict=True):
        torch.testing.assert_close(one, other, **ROUNDING)


@pytest.mark.parametrize("backend", ["reference", "carried", "stacked"])
def test_backends_agree(backend):
    model, batch = build("timm")
    wanted = model.written_out(batch, Recursion(0.3, 0.6, "stream"))
    got = uc.convert(model, alpha=0.3, alpha_hidden=0.6, backend=backend, example=batch)(batch)
    torch.testing.assert_close(got, wanted, **ROUNDING)


@every_module
def test_zero_is_stock_and_restored_is_stock_bit_for_bit(name):
    model, batch = build(name)
    stock, keys = first(model(batch)), list(model.state_dict())
    uc.convert(model, alpha=0.0, alpha_hidden=0.0, example=batch)
    torch.testing.assert_close(first(model(batch)), stock, **ROUNDING)
    assert list(model.state_dict()) == keys
    uc.restore(model)
    assert torch.equal(first(model(batch)), stock)
    assert not any("_uncollapse" in key for module in model.modules() for key in module.__dict__)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@every_module
def test_the_plan_names_blocks_and_projections(name):
    model, batch = build(name)
    plan = uc.plan(model, example=batch)
    (stack,) = plan.stacks
    assert len(stack.layers) == LAYERS
    assert not stack.refusal
    for layer in stack.layers:
        assert layer.name.startswith(layer.block or "layers.")
        assert (layer.block is None) == (name == "x_transformers")
        assert layer.output is not None
        assert layer.stream is not None
        assert layer.normed is not None
        assert layer.name in str(plan)
        assert f"<code>{layer.name}</code>" in plan._repr_html_()
    assert Plan.from_data(json.loads(json.dumps(plan.to_data()))) == plan


def test_a_notebook_shows_a_plan_escaped_with_what_is_missing_marked():
    layer = LayerPlan("<img src=x>", "sdpa", 2, block="blocks.0", output="blocks.0.out")
    html = Plan("<b>", (Stack("blocks.#", (layer,), "<i>why</i>"),), (("other", "<u>no</u>"),))._repr_html_()
    assert not any(tag in html for tag in ("<img", "<i>", "<u>", "<b><b>"))
    assert html.count("not found") == 3  # x, y, and the weights of queries and keys


def test_set_alpha_acts_at_once():
    model, batch = build("nanogpt")
    wanted = model.written_out(batch, Recursion(0.3, 0.6, "stream"))
    uc.convert(model, alpha=0.0, alpha_hidden=0.0, example=batch)
    uc.set_alpha(model, alpha=0.3, alpha_hidden=0.6)
    torch.testing.assert_close(first(model(batch)), wanted, **ROUNDING)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("name", ["nanogpt", "encoder_post", "x_transformers"])
def test_a_copy_is_converted_and_independent(name, copied):
    model, batch = build(name)
    uc.convert(model, alpha=0.3, alpha_hidden=0.6, example=batch)
    wanted = first(model(batch)).detach()
    twin = copied(model)
    assert torch.equal(first(twin(batch)), wanted)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    uc.restore(model)
    assert torch.equal(first(twin(batch)), wanted)
    uc.set_alpha(twin, alpha=0.0, alpha_hidden=0.0)
    assert not torch.equal(first(twin(batch)), wanted)


def test_a_second_conversion_replaces_the_first():
    model, batch = build("timm")
    wanted = model.written_out(batch, Recursion(0.3, 0.6, "stream"))
    uc.convert(model, alpha=0.9, alpha_hidden=0.9, skip="normed", example=batch)
    uc.convert(model, alpha=0.3, alpha_hidden=0.6, example=batch)
    torch.testing.assert_close(model(batch), wanted, **ROUNDING)


def test_batches_are_keywords_positions_or_one_argument():
    model, batch = build("nanogpt")
    wanted = model.written_out(batch, Recursion(0.3, 0.6, "stream"))
    runs = [
        ({"idx": batch}, None),
        ((batch, batch), None),
        ([batch], None),
        ({"idx": batch, "labels": 7}, lambda model, batch: model(batch["idx"])),
    ]
    for example, run in runs:
        uc.convert(model, alpha=0.3, alpha_hidden=0.6, example=example, run=run)
        torch.testing.assert_close(first(model(batch)), wanted, **ROUNDING)
        uc.restore(model)
