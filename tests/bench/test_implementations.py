"""Every implementation computes what it says: the definition, or ordinary attention."""

import os

import pytest
import torch

from uncollapse.attention import hopfield_attention, tile_engine
from uncollapse.bench.implementations import IMPLEMENTATIONS, NATIVE_SWITCH, RULE, native_switched
from uncollapse.bench.stack_shape import LENGTHS, VIT, StackShape, measured_shapes

SHAPES = [StackShape(length=70, layers=3, batch=2, heads=2, size=8, causal=causal) for causal in (True, False)]


def truth(layers, causal, inherits):
    """The definition; with nothing inherited it is ordinary attention."""
    state, outs = None, []
    for q, k, v in layers:
        rule = {"rule": RULE} if inherits else {"alpha_hidden": 0.0}
        out, state = hopfield_attention(q, k, v, state, is_causal=causal, backend="reference", **rule)
        outs.append(out)
    return outs


def gradients(outs, layers):
    weights = torch.linspace(-1, 1, outs[0].numel(), dtype=outs[0].dtype).view(outs[0].shape)
    return torch.autograd.grad(outs, [t for layer in layers for t in layer], [weights] * len(outs), allow_unused=True)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda implementation: implementation.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_implementation_computes_the_definition(implementation, shape, dtype):
    layers = [tuple(t.requires_grad_() for t in layer) for layer in shape.inputs(seed=1, dtype=dtype)]
    if implementation.missing(layers):
        pytest.skip("the C++ tiles serve float32, where there is a compiler; this dtype runs in torch tiles")
    # float64: rounding of sums over 70 keys. float32: the same, and the C++ tiles' exponential is exact to 2e-7.
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    if "float16" in implementation.name:
        tolerance = 2e-3  # scores of order 1 are rounded to 2^-11, their gradient to 2^-9
    outs, wanted = (
        list(implementation.stack(layers, shape.causal)),
        truth(layers, shape.causal, implementation.inherits),
    )
    for got, want in zip(outs, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    for got, want in zip(gradients(outs, layers), gradients(wanted, layers), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_the_torch_implementation_runs_without_the_compiled_tiles(monkeypatch):
    monkeypatch.setenv(NATIVE_SWITCH, "1")
    with native_switched(False):
        assert tile_engine(torch.zeros(1, 1, 1, 1)) == "torch"
    assert os.environ[NATIVE_SWITCH] == "1"
    monkeypatch.delenv(NATIVE_SWITCH)
    with native_switched(False):
        assert os.environ[NATIVE_SWITCH] == "0"
    assert NATIVE_SWITCH not in os.environ


def test_a_implementation_without_its_compiler_says_so(monkeypatch):
    monkeypatch.setenv(NATIVE_SWITCH, "0")
    compiled = next(c for c in IMPLEMENTATIONS if c.needs_compiler)
    assert "no compiler, or UNCOLLAPSE_NATIVE=0" in compiled.missing(SHAPES[0].inputs())


def test_shapes_go_from_short_to_long_and_end_with_the_image_model():
    shapes = measured_shapes(reversed(LENGTHS))
    assert [shape.length for shape in shapes] == [*LENGTHS, 197]
    assert shapes[-1] == VIT
    assert all(shape.causal for shape in shapes[:-1])


def test_inputs_are_the_same_for_the_same_seed():
    first, again, other = (SHAPES[0].inputs(seed)[0][0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (2, 2, 70, 8)
