"""The backend `reversible`: the definition within its stated error, however it is used, in two score matrices."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from torch.utils.checkpoint import checkpoint

import uncollapse as uc
from tests.attention.parity import RULES, Stack, assert_same, evaluate, stacks
from uncollapse.attention import _reversible as reversible
from uncollapse.attention._stacked_tiles import write_scores

FLOAT64 = 1e-9  # as in test_exact_backends: four layers
FLOAT32 = 2e-4 + reversible.LIMIT  # the rounding of test_exact_backends, and what running backwards may add
KINDS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["cpp", "torch"])
DEEP = {"depth": 12, "queries": 70, "keys": 70, "heads": 4, "groups": 4, "dtype": torch.float32}
MANY = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def relative_errors(ours, theirs):
    """Of every output and gradient, relative to its size."""
    pairs = zip(ours.outs + ours.gradients, theirs.outs + theirs.gradients, strict=True)
    return [((a.double() - b.double()).norm() / b.double().norm()).item() for a, b in pairs]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_is_the_reference(dtype):
    @MANY
    @given(stack=stacks(dtype))
    def check(stack):
        assume(stack.arguments["rule"].keep >= reversible.SMALLEST_KEEP)
        tolerance = FLOAT64 if dtype == torch.float64 else FLOAT32
        assert_same(evaluate(stack, "reversible"), evaluate(stack, "reference"), tolerance)

    check()


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("sharpness", [1.0, 8.0])
def test_gradients_of_many_layers_stay_within_the_stated_error(keep, sharpness):
    """Against `carried` in the same float32, so that what is seen is what running backwards adds."""
    stack = Stack(**DEEP, arguments={"is_causal": True, "rule": uc.ScoreRule("own", keep=keep, take=1.1 - keep)})
    stack.layers = [(sharpness * q, k, v) for q, k, v in stack.layers]
    assert max(relative_errors(evaluate(stack, "reversible"), evaluate(stack, "carried"))) < reversible.LIMIT


@pytest.mark.parametrize("keep", [0.5, 1.0])
def test_layers_that_are_all_alike_stay_within_the_stated_error(keep):
    """Their scores add up instead of averaging out, which the estimate of their size does not see."""
    stack = Stack(**{**DEEP, "depth": 24}, arguments={"rule": uc.ScoreRule("own", keep=keep, take=0.5)})
    stack.layers = [(*stack.layers[0][:2], v) for _, _, v in stack.layers]
    assert max(relative_errors(evaluate(stack, "reversible"), evaluate(stack, "carried"))) < reversible.LIMIT


def test_the_error_of_the_scores_is_below_the_estimate_that_stops_it(monkeypatch):
    """Every H that a step backwards makes, against the one of the forward pass."""
    stack, forward, seen = Stack(**DEEP), {}, []
    stepped = reversible.RunningScores.set

    def watched(self, buffer, layer, error=0.0):
        stepped(self, buffer, layer, error)
        if buffer is not None and layer is not None:
            if not self.backwards:
                forward[layer] = buffer.clone()
            elif error > 0:
                seen.append(((buffer - forward[layer]).abs().max().item(), error))

    monkeypatch.setattr(reversible.RunningScores, "set", watched)
    evaluate(stack, "reversible", rule=uc.ScoreRule.hopfield(0.3))
    assert len(seen) > 3
    assert all(error <= estimate <= reversible.LIMIT for error, estimate in seen)


@KINDS
def test_scores_are_made_afresh_before_the_error_is_too_large(dtype, monkeypatch):
    made = []
    monkeypatch.setattr(
        "uncollapse.attention._stacked_tiles.write_scores", lambda *a: made.append(1) or write_scores(*a)
    )
    stack = Stack(**{**DEEP, "dtype": dtype})
    evaluate(stack, "reversible", alpha_hidden=0.3)
    assert bool(made) == (dtype == torch.float32)  # float64 has bits enough for 12 layers


@KINDS
def test_two_forwards_before_two_backwards_and_accumulation(dtype):
    first, second = (Stack(**{**DEEP, "dtype": dtype}, seed=seed) for seed in (1, 2))
    apart = [evaluate(stack, "reversible") for stack in (first, second)]
    layers = first.inputs(), second.inputs()
    for _ in range(2):
        pairs = zip((first, second), layers, strict=True)
        losses = [stack.loss(stack.run(inputs, "reversible")[0]) for stack, inputs in pairs]
        for loss in reversed(losses):
            loss.backward()
    for inputs, alone in zip(layers, apart, strict=True):
        for tensor, gradient in zip([t for layer in inputs for t in layer], alone.gradients, strict=True):
            torch.testing.assert_close(tensor.grad, 2 * gradient, rtol=1e-5, atol=1e-5)


@KINDS
@pytest.mark.parametrize("length", [1, 2])
def test_gradient_checkpointing(dtype, length):
    stack = Stack(**{**DEEP, "depth": 6, "dtype": dtype})

    def segment(layers, state):
        outs = []
        for q, k, v in layers:
            out, state = uc.hopfield_attention(
                q.sin(), k.sin(), v.sin(), state, is_causal=True, backend="reversible", dropout_p=0.1
            )
            outs.append(out)
        return outs, state

    results = []
    for saved in (False, True):
        torch.manual_seed(0)
        layers, outs, state = stack.inputs(), [], None
        for start in range(0, 6, length):
            part = layers[start : start + length]
            more, state = checkpoint(segment, part, state, use_reentrant=False) if saved else segment(part, state)
            outs += more
        stack.loss(outs).backward()
        results.append([t.grad for layer in layers for t in layer])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=reversible.LIMIT, atol=reversible.LIMIT)


@KINDS
def test_every_state_stays_readable_and_may_be_continued_again(dtype):
    stack = Stack(**{**DEEP, "depth": 4, "dtype": dtype})
    results = []
    for backend in ("reversible", "reference"):
        layers = stack.inputs()
        out1, state = uc.hopfield_attention(*layers[0], backend=backend)
        out2, second = uc.hopfield_attention(*layers[1], state, backend=backend)
        out3, other = uc.hopfield_attention(*layers[2], state, backend=backend)
        out4, _ = uc.hopfield_attention(*layers[3], other, backend=backend)
        scores = [s.scores() for s in (state, second, other, second.clone())]
        (stack.loss([out1, out2, out3, out4]) + scores[1].square().sum()).backward()
        results.append([s.detach() for s in scores] + [t.grad for layer in layers for t in layer])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=FLOAT32, atol=FLOAT32 if dtype == torch.float32 else FLOAT64)


@KINDS
def test_a_full_state_can_go_on_causally(dtype):
    stack = Stack(**{**DEEP, "depth": 4, "dtype": dtype})
    results = []
    for backend in ("reversible", "reference"):
        layers, outs, state = stack.inputs(), [], None
        for n, layer in enumerate(layers):
            out, state = uc.hopfield_attention(*layer, state, is_causal=n >= 2, backend=backend)
            outs.append(out)
        stack.loss(outs).backward()
        results.append([o.detach() for o in outs] + [t.grad for layer in layers for t in layer])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=FLOAT32, atol=FLOAT32)


@KINDS
@pytest.mark.parametrize("start", [0.0, 0.4])
def test_learned_coefficients_get_their_gradient(dtype, start):
    """Also where a head inherits nothing, which cannot be run backwards: its scores are made afresh."""
    stack = Stack(**{**DEEP, "depth": 5, "dtype": dtype}, arguments={"is_causal": True})
    results = []
    for backend in ("reversible", "reference"):
        alpha = torch.tensor([start, 0.3, 0.6, 0.9], dtype=dtype).requires_grad_()
        layers = stack.inputs()
        outs, _ = stack.run(layers, backend, alpha_hidden=alpha)
        stack.loss(outs).backward()
        results.append([alpha.grad] + [t.grad for layer in layers for t in layer])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=FLOAT32)


@pytest.mark.parametrize("native", ["1", "0"])
def test_torch_compile_gives_the_same(native, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
    torch._dynamo.reset()
    stack = Stack(**{**DEEP, "depth": 3}, arguments={"is_causal": True})
    results = []
    for run in (torch.compile(lambda x: stack.run(x, "reversible")[0], fullgraph=True, backend="aot_eager"), None):
        layers = stack.inputs()
        outs = run(layers) if run else stack.run(layers, "reversible")[0]
        stack.loss(outs).backward()
        results.append([t.grad for layer in layers for t in layer])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=FLOAT32, atol=FLOAT32)


def test_two_matrices_serve_all_layers():
    """Largest number of score buffers alive at once: one going forwards, two going backwards, and one being made."""
    alive, most = set(), []
    stack = Stack(**DEEP, arguments={"is_causal": True})
    take = reversible.POOL.take

    def counted(count, dtype, device):
        import weakref

        tensor = take(count, dtype, device)
        weakref.finalize(tensor.untyped_storage(), alive.discard, key := object())
        alive.add(key)
        most.append(len(alive))
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reversible.POOL, "take", counted)
        layers = stack.inputs()
        outs, _ = stack.run(layers, "reversible")
        assert max(most) == 1
        stack.loss(outs).backward()
    assert max(most) == 2


@pytest.mark.parametrize("rule", ["keeps-nothing", "self_attention"])
def test_what_cannot_be_run_backwards_is_refused_with_the_reason(rule):
    q = k = v = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match=r"backend 'reversible' divides by keep.*keep = 0 is below 0.1"):
        uc.hopfield_attention(q, k, v, rule=RULES[rule], backend="reversible")
    with pytest.raises(ValueError, match=r"keep = 0.05 is below 0.1.*use backend='carried' or 'stacked'"):
        uc.hopfield_attention(q, k, v, alpha_hidden=0.05, backend="reversible")


def test_two_bytes_are_refused_with_the_reason():
    q = k = v = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match=r"'reversible' needs the scores in float32.*goes with backend='carried'"):
        uc.hopfield_attention(q, k, v, scores_dtype="float16", backend="reversible")


def test_without_gradients_one_buffer_serves_all_layers():
    stack = Stack(**DEEP)
    with torch.no_grad():
        outs, state = stack.run(stack.inputs(), "reversible")
        theirs, _ = stack.run(stack.inputs(), "carried")
    for ours, wanted in zip(outs, theirs, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    assert state.running.holds(12)
