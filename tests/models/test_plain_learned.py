"""Learned coefficients in plain PyTorch modules."""

import copy

import pytest
import torch

import uncollapse as uc
from tests.models.modules import LAYERS, MODULES, Biased, Recursion, build, first, vectors
from uncollapse.attention.learned import raw_value, share
from uncollapse.models.learned import learned_parameters

LEARNED = {"alpha": "learned:0.3", "alpha_hidden": "learned:0.6"}
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # float64 through four layers


def learned(name, **more):
    model, batch = build(name)
    return uc.convert(model, **(LEARNED | more), example=batch), batch


every_module = pytest.mark.parametrize("name", MODULES)


@every_module
@pytest.mark.parametrize("skip", ["stream", "normed"])
def test_they_start_as_numbers_and_get_their_gradients(name, skip):
    plain, batch = build(name)
    wanted = plain.written_out(batch, Recursion(0.3, 0.6, skip))
    model, batch = learned(name, skip=skip)
    got = first(model(batch))
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)  # a sigmoid and its inverse
    got.square().sum().backward()
    found = dict(learned_parameters(model))
    assert len(found) == 2 * LAYERS
    raw = torch.tensor([raw_value(0.3), raw_value(0.6)], dtype=torch.float64, requires_grad=True)
    slopes = torch.autograd.grad(share(raw).sum(), raw)[0]
    for kind, slope, change in (("visible", slopes[0], (1.0, 0.0)), ("hidden", slopes[1], (0.0, 1.0))):
        total = sum(p.grad.sum() for key, p in found.items() if key.endswith(kind)) / slope
        step = 1e-5
        up, down = (
            plain.written_out(batch, Recursion(0.3 + s * change[0], 0.6 + s * change[1], skip)).square().sum()
            for s in (step, -step)
        )
        assert total.item() == pytest.approx(((up - down) / (2 * step)).item(), rel=1e-5)


@every_module
def test_they_are_saved_copied_shown_and_taken_back(name, tmp_path):
    model, batch = learned(name)
    with torch.no_grad():
        for n, (_, parameter) in enumerate(learned_parameters(model)):
            parameter.add_(0.1 * n)
        truth = first(model(batch))
        again = uc.load(lambda: build(name)[0], uc.save(model, tmp_path / "model"))
        assert torch.equal(first(again(batch)), truth)
        assert torch.equal(first(copy.deepcopy(model)(batch)), truth)
    report = uc.diagnose(model, batch, progress=False)
    assert report.heads["alpha_hidden"].nunique() > 1
    assert report.layers["alpha"].nunique() == LAYERS
    keys = list(build(name)[0].state_dict())
    assert list(uc.restore(model).state_dict()) == keys


@every_module
def test_a_start_at_zero_is_the_stock_model(name):
    model, batch = build(name)
    stock = first(model(batch))
    uc.convert(model, alpha="learned:0", alpha_hidden="learned:0", example=batch)
    torch.testing.assert_close(first(model(batch)), stock, **ROUNDING)


def test_a_refused_conversion_leaves_what_was_learned():
    model, batch = learned("nanogpt")
    with torch.no_grad():
        next(parameter for _, parameter in learned_parameters(model)).add_(1.0)
        before = first(model(batch))
        with pytest.raises(ValueError, match="where no attention was seen"):
            uc.convert(model, example=batch, layers=["no.such.module"])
        assert torch.equal(first(model(batch)), before)


def test_heads_in_the_batch_cannot_learn_apart():
    with pytest.raises(ValueError, match=r"the heads of .* are part of its batch"):
        uc.convert(Biased(0.5).eval(), alpha_hidden="learned", example=vectors())
