"""Scores in two bytes: H in float16, its gradient in bfloat16, the same in every backend that keeps scores."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import uncollapse as uc
from tests.attention.parity import MASKS, RULES, Stack, evaluate, masking

HALF = {"scores_dtype": torch.float16}
ENGINES = pytest.mark.parametrize("native", ["1", "0"], ids=["cpp", "torch"])


def distance(ours, theirs):
    """Root mean square difference of outputs and gradients, relative to their size."""
    pairs = list(zip(ours.outs + ours.gradients, theirs.outs + theirs.gradients, strict=True))
    off = sum((a.double() - b.double()).square().sum() for a, b in pairs)
    size = sum(b.double().square().sum() for _, b in pairs)
    return (off / size).sqrt().item() if size > 0 else off.item()


@settings(max_examples=40, deadline=None)
@given(rule=st.sampled_from(sorted(RULES)), mask=st.sampled_from(MASKS), tokens=st.sampled_from([1, 15, 64, 65, 130]))
def test_torch_tiles_round_where_the_reference_does(rule, mask, tokens):
    stack = Stack(queries=tokens, keys=tokens, heads=4)
    stack.arguments = {"rule": RULES[rule], **masking(mask, stack, torch.float64)}
    ours, theirs = evaluate(stack, "carried", **HALF), evaluate(stack, "reference", **HALF)
    # The same roundings of the same numbers, but for ties that the last bit of float64 decides: gradients then differ
    # by half a unit of bfloat16 in one entry.
    assert distance(ours, theirs) < 1e-5


@settings(max_examples=40, deadline=None)
@given(rule=st.sampled_from(sorted(RULES)), mask=st.sampled_from(MASKS), tokens=st.sampled_from([1, 15, 64, 65, 130]))
def test_compiled_tiles_round_as_the_reference_does(rule, mask, tokens):
    stack = Stack(queries=tokens, keys=tokens, heads=4, groups=2, dtype=torch.float32)
    stack.arguments = {"rule": RULES[rule], **masking(mask, stack, torch.float32)}
    ours, theirs = evaluate(stack, "carried", **HALF), evaluate(stack, "reference", **HALF)
    # float32 decides many a tie otherwise: an entry of H moves by 2^-11 of its size, and few entries do.
    assert distance(ours, theirs) < 5e-4
    assert distance(ours, evaluate(stack, "reference")) < 5e-3


@ENGINES
def test_the_state_takes_half_the_memory_and_says_so(native, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
    stack = Stack(queries=70, keys=70, dtype=torch.float32, depth=2)
    _, wide = stack.run(stack.inputs(), "carried")
    _, state = stack.run(stack.inputs(), "carried", **HALF)
    assert state.dtype == torch.float16
    assert 2 * state.hidden.untyped_storage().nbytes() == wide.hidden.untyped_storage().nbytes()
    scores = state.scores().detach()
    assert scores.dtype == torch.float32
    assert torch.equal(scores, scores.half().float())
    torch.testing.assert_close(scores, wide.scores().detach(), rtol=2**-9, atol=1e-3)
    assert torch.equal(state.clone().scores().detach(), scores)


@ENGINES
@pytest.mark.parametrize("backend", ["carried", "reference"])
def test_large_scores_saturate_and_infinite_ones_stay(native, backend, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
    q = torch.tensor([1e5, -1e5, 1.0]).view(1, 1, 3, 1)
    k = torch.linspace(0.5, 2, 40).view(1, 1, 40, 1)
    out, state = uc.hopfield_attention(q, k, k, start="raw", backend=backend, **HALF)
    assert state.scores()[0, 0, 0].max() == 65504
    assert state.scores()[0, 0, 1].min() == -65504
    assert out.isfinite().all()
    out, _ = uc.hopfield_attention(q * float("inf"), k, k, start="raw", backend=backend, **HALF)
    assert not out[0, 0, 0].isfinite().any()


@ENGINES
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_not_a_number_is_not_hidden(native, value, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
    layer = [torch.randn(1, 2, 70, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    layer[0][0, 0, 30, 2] = value
    ours, _ = uc.hopfield_attention(*layer, backend="carried", **HALF)
    theirs, _ = uc.hopfield_attention(*layer, backend="reference")
    assert torch.equal(ours.isfinite(), theirs.isfinite())


@ENGINES
def test_a_loss_of_the_scores_reaches_every_layer(native, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
    stack = Stack(queries=70, keys=70, dtype=torch.float32)
    results = []
    for backend in ("carried", "reference"):
        layers = stack.inputs()
        _, state = stack.run(layers, backend, **HALF)
        state.scores().square().sum().backward()
        results.append(torch.cat([layer[0].grad.flatten() for layer in layers]))
    torch.testing.assert_close(*results, rtol=0, atol=2**-7 * results[1].abs().max().item())  # a few bfloat16 roundings


def test_learned_coefficients_and_checkpoints_go_together_with_two_bytes():
    stack = Stack(queries=70, keys=70, dtype=torch.float32)
    gradients = []
    for backend in ("carried", "reference"):
        alpha = torch.tensor([0.3, 0.6]).requires_grad_()
        outs, _ = stack.run(stack.inputs(), backend, alpha_hidden=alpha, **HALF)
        gradients.append(torch.autograd.grad(stack.loss(outs), alpha)[0])
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-2)


def test_it_travels_in_the_state_and_may_not_change():
    q = k = v = torch.randn(1, 2, 5, 4)
    _, state = uc.hopfield_attention(q, k, v, scores_dtype="float16")
    _, after = uc.hopfield_attention(q, k, v, state)
    assert after.dtype == torch.float16
    _, wide = uc.hopfield_attention(q, k, v)
    with pytest.raises(ValueError, match=r"needs a state of dtype torch.float16, got torch.float32"):
        uc.hopfield_attention(q, k, v, wide, scores_dtype=torch.float16)
    with pytest.raises(ValueError, match=r"scores_dtype must be None .* or torch.float16, got torch.bfloat16"):
        uc.hopfield_attention(q, k, v, scores_dtype=torch.bfloat16)


def test_stacked_keeps_no_scores_and_does_as_ever():
    stack = Stack(queries=20, keys=20)
    (ours, _), (theirs, state) = (stack.run(stack.inputs(), "stacked", **more) for more in (HALF, {}))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert state.dtype == torch.float64


@ENGINES
def test_torch_compile_gives_the_same(native, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
    torch._dynamo.reset()
    stack = Stack(depth=3, queries=70, keys=70, dtype=torch.float32, arguments={"is_causal": True, **HALF})
    results = []
    for run in (torch.compile(lambda x: stack.run(x, "carried")[0], fullgraph=True, backend="aot_eager"), None):
        layers = stack.inputs()
        outs = run(layers) if run else stack.run(layers, "carried")[0]
        stack.loss(outs).backward()
        results.append([t.grad for layer in layers for t in layer])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
