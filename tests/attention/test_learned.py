"""Coefficients that are tensors: every backend gives them the gradient that the definition has."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

import uncollapse as uc
from tests.attention.parity import MASKS, Stack, masking

FAST = ["carried", "stacked"]
BACKENDS = pytest.mark.parametrize("backend", FAST)
ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-4}  # as in test_exact_backends


def learned(kind, heads, depth, dtype, start=0.3):
    """One coefficient for each layer: scalars, one value for each head, or one shared by all layers."""
    maker = torch.Generator().manual_seed(7)
    shape = () if kind == "scalar" else (heads,)
    made = [(start + 0.5 * torch.rand(shape, generator=maker)).to(dtype).requires_grad_() for _ in range(depth)]
    return made[:1] * depth if kind == "shared" else made


def evaluate(stack, backend, coefficients, rule, dtype, **more):
    layers, outs, state = stack.inputs(dtype), [], None
    for layer, coefficient in zip(layers, coefficients, strict=True):
        out, state = uc.hopfield_attention(
            *layer, state, rule=rule(coefficient), backend=backend, enable_gqa=True, **{**stack.arguments, **more}
        )
        outs.append(out)
    leaves = [t for layer in layers for t in layer] + list({id(c): c for c in coefficients}.values())
    gradients = torch.autograd.grad(stack.loss(outs), leaves, allow_unused=True)
    return [o.detach() for o in outs] + [torch.zeros(()) if g is None else g for g in gradients]


def assert_same(ours, theirs, tolerance):
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


RULES = {
    "hopfield": uc.ScoreRule.hopfield,
    "hopfield-raw": lambda a: uc.ScoreRule.hopfield(a, start="raw"),
    "revit": uc.ScoreRule.revit,
    "keep alone": lambda a: uc.ScoreRule("own", keep=a, take=1.0),
    "take alone": lambda a: uc.ScoreRule("own", keep=1.0, take=a),
}


@BACKENDS
@settings(max_examples=40, deadline=None)
@given(
    rule=st.sampled_from(sorted(RULES)),
    kind=st.sampled_from(["scalar", "heads", "shared"]),
    mask=st.sampled_from(MASKS),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    tokens=st.sampled_from([1, 7, 65]),
    groups=st.sampled_from([1, 2, 4]),
)
def test_gradients_are_those_of_the_reference(backend, rule, kind, mask, dtype, tokens, groups):
    stack = Stack(heads=4, groups=groups, queries=tokens, keys=tokens, dtype=dtype)
    stack.arguments = masking(mask, stack, dtype)
    coefficients = learned(kind, 4, stack.depth, dtype)
    ours = evaluate(stack, backend, coefficients, RULES[rule], dtype)
    assert_same(ours, evaluate(stack, "reference", coefficients, RULES[rule], dtype), 10 * ROUNDING[dtype])


def three_layers(alpha, tensors, backend, is_causal):
    state, total = None, 0.0
    for n in range(3):
        layer = tensors[3 * n : 3 * n + 3]
        out, state = uc.hopfield_attention(*layer, state, alpha_hidden=alpha, is_causal=is_causal, backend=backend)
        total = total + out.square().sum()
    return total


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.parametrize("is_causal", [False, True])
def test_gradcheck(backend, is_causal):
    stack = Stack(depth=3, batch=1, queries=4, keys=4, size=2, value_size=2)
    tensors = [t for layer in stack.inputs() for t in layer]
    alpha = torch.tensor([0.3, 0.6], dtype=torch.float64).requires_grad_()
    if backend != "carried":
        assert gradcheck(lambda a, *t: three_layers(a, t, backend, is_causal), (alpha, *tensors))
        return
    (gradient,) = torch.autograd.grad(three_layers(alpha, tensors, backend, is_causal), alpha)  # one backward a graph
    for head, step in enumerate(1e-5 * torch.eye(2, dtype=torch.float64)):
        with torch.no_grad():
            up, down = (three_layers(alpha + sign * step, tensors, backend, is_causal) for sign in (1, -1))
        assert gradient[head].item() == pytest.approx((up - down).item() / 2e-5, rel=1e-6)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_coefficient_of_zero_inherits_nothing_and_has_a_gradient(backend, dtype):
    stack = Stack(queries=70, keys=70, arguments={"is_causal": True})
    zeros = [torch.zeros(2, dtype=dtype).requires_grad_() for _ in range(stack.depth)]
    ours = evaluate(stack, backend, zeros, uc.ScoreRule.hopfield, dtype)
    assert_same(ours, evaluate(stack, "reference", zeros, uc.ScoreRule.hopfield, dtype), 10 * ROUNDING[dtype])
    assert all(g.abs().min() > 0 for g in ours[-stack.depth :])
    plain, _ = stack.run(stack.inputs(dtype), backend, rule=uc.ScoreRule.self_attention())
    assert_same(ours[: stack.depth], [o.detach() for o in plain], ROUNDING[dtype])


@BACKENDS
@pytest.mark.parametrize("native", ["1", "0"])
def test_torch_compile_gives_the_same_gradients(backend, native, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
    torch._dynamo.reset()
    stack = Stack(depth=2, queries=70, keys=70, dtype=torch.float32, arguments={"is_causal": True})

    def forward(layers, coefficients):
        outs, state = [], None
        for layer, alpha in zip(layers, coefficients, strict=True):
            out, state = uc.hopfield_attention(*layer, state, alpha_hidden=alpha, backend=backend, is_causal=True)
            outs.append(out)
        return outs

    results = []
    for run in (torch.compile(forward, fullgraph=True, backend="aot_eager"), forward):
        layers, coefficients = stack.inputs(), learned("heads", 2, 2, torch.float32)
        stack.loss(run(layers, coefficients)).backward()
        results.append([c.grad for c in coefficients] + [layer[0].grad for layer in layers])
    assert_same(*results, 1e-5)


def test_a_learned_coefficient_needs_no_score_matrix_of_its_own():
    """`carried` saves H_n once a layer: the old scores that a learned keep reads are those of the layer below."""
    saved = set()
    stack = Stack(queries=70, keys=70)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.add((t.data_ptr(), t.numel())) or t, lambda t: t):
        stack.run(stack.inputs(), "carried", alpha_hidden=torch.tensor(0.5, dtype=torch.float64).requires_grad_())
    assert len({place for place, count in saved if count == 2 * 2 * 70 * 70}) == stack.depth


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_a_coefficient_of_a_wrong_shape_is_refused(backend):
    q = k = v = torch.randn(1, 4, 5, 3)
    with pytest.raises(ValueError, match=r"take must be a number, or a tensor of shape \(\) or \(4,\).*got \(3,\)"):
        uc.hopfield_attention(q, k, v, alpha_hidden=torch.rand(3), backend=backend)
