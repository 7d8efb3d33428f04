"""What only `carried` has: score buffers in strips, causal states, checkpointing of one score matrix."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import uncollapse as uc
from tests.attention.parity import Stack, assert_same, evaluate
from uncollapse.attention._tiling import TILE, ScoreLayout

FLOAT64 = 1e-9


@given(st.integers(0, 500), st.integers(1, 500), st.booleans())
def test_the_strips_of_a_layout_fill_its_memory(queries, keys, causal):
    layout = ScoreLayout(queries, queries if causal else keys, causal)
    end, row = 0, 0
    for strip in layout.strips():
        assert (strip.offset, strip.start) == (end, row)
        assert strip.stop - strip.start <= TILE
        end, row = end + (strip.stop - strip.start) * strip.width, strip.stop
    assert (end, row) == (layout.per_head, queries)


def test_a_causal_layout_stores_little_more_than_half():
    assert ScoreLayout(1024, 1024, causal=True).per_head < 0.54 * 1024 * 1024


def test_scores_of_later_keys_are_minus_infinity_after_a_causal_layer():
    stack = Stack(queries=130, keys=130)
    with torch.no_grad():
        _, ours = stack.run(stack.inputs(), "carried", is_causal=True)
        _, theirs = stack.run(stack.inputs(), "reference", is_causal=True)
    future = torch.ones(130, 130, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours.scores(), theirs.scores().masked_fill(future, float("-inf")), rtol=0, atol=1e-12)


def test_a_causal_state_cannot_go_on_without_causality():
    q = k = v = torch.randn(1, 2, 70, 4)
    _, state = uc.hopfield_attention(q, k, v, is_causal=True, backend="carried")
    with pytest.raises(ValueError, match="has no scores of later keys; continue with is_causal=True"):
        uc.hopfield_attention(q, k, v, state, backend="carried")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal_from", [1, 2, 3])
def test_a_full_state_can_go_on_causally(dtype, causal_from):
    stack = Stack(queries=100, keys=100, dtype=dtype)
    results = []
    for backend in ("carried", "reference"):
        layers, outs, state = stack.inputs(), [], None
        for n, layer in enumerate(layers):
            out, state = uc.hopfield_attention(*layer, state, is_causal=n >= causal_from, backend=backend)
            outs.append(out)
        stack.loss(outs).backward()
        results.append([o.detach() for o in outs] + [t.grad for layer in layers for t in layer])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 if dtype == torch.float32 else FLOAT64)


def test_a_full_state_goes_on_causally_without_gradients():
    stack = Stack(queries=100, keys=100, depth=2)
    with torch.no_grad():
        (first, second), outs = stack.inputs(), []
        for backend in ("carried", "reference"):
            _, state = uc.hopfield_attention(*first, backend=backend)
            outs.append(uc.hopfield_attention(*second, state, is_causal=True, backend=backend)[0])
    torch.testing.assert_close(*outs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("keep", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stale_buffer_is_never_read(keep, dtype):
    """Memory that held NaN is handed out again; nothing of it may show, whatever the share that is kept."""
    stack = Stack(queries=600, keys=600, batch=1, dtype=dtype, depth=3)
    torch.full((2 * 600 * 600,), float("nan"), dtype=dtype)
    with torch.no_grad():
        for poison in (True, False):
            layers = [tuple(t * float("nan") if poison else t for t in layer) for layer in stack.inputs()]
            outs, _ = stack.run(layers, "carried", rule=uc.ScoreRule.revit(1.0 - keep))
    assert all(out.isfinite().all() for out in outs)


def test_layers_may_differ_in_head_size_scale_and_mask():
    stack = Stack(depth=1)
    wide = Stack(depth=1, size=12, value_size=3, seed=5)
    results = []
    for backend in ("carried", "stacked", "reference"):
        layers = stack.inputs() + wide.inputs()
        out1, state = uc.hopfield_attention(*layers[0], backend=backend)
        mask = torch.ones(7, 7, dtype=torch.bool).tril()
        out2, _ = uc.hopfield_attention(*layers[1], state, backend=backend, scale=0.3, attn_mask=mask)
        (stack.loss([out1]) + wide.loss([out2])).backward()
        results.append([t.grad for layer in layers for t in layer])
    for ours in results[:2]:
        for mine, theirs in zip(ours, results[2], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=FLOAT64, atol=FLOAT64)


@pytest.mark.parametrize("frozen", [0, 1, 2], ids=["q", "k", "v"])
def test_an_input_that_needs_no_gradient_gets_none(frozen):
    stack = Stack(queries=70, keys=70)
    results = []
    for backend in ("carried", "reference"):
        layers = stack.inputs()
        for layer in layers[:2]:
            layer[frozen].requires_grad_(False)
        outs, _ = stack.run(layers, backend)
        stack.loss(outs).backward()
        results.append([t.grad for layer in layers for t in layer])
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=FLOAT64, atol=FLOAT64)


@pytest.mark.parametrize("backend", ["carried", "stacked"])
def test_gradients_of_gradients_are_refused(backend):
    stack = Stack(depth=1)
    layers = stack.inputs()
    outs, _ = stack.run(layers, backend)
    with pytest.raises(RuntimeError, match=r"gradients of gradients .* backend='reference'"):
        torch.autograd.grad(stack.loss(outs), layers[0][0], create_graph=True)


def test_auto_is_carried_where_scores_fit_and_goes_on_as_it_began():
    stack = Stack()
    _, state = stack.run(stack.inputs(), "auto")
    assert state.backend == "carried"
    assert_same(evaluate(stack, "auto"), evaluate(stack, "reference"), FLOAT64)
