"""What `carried` and `stacked` share: both are the definition, in outputs, scores and gradients."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn.functional import scaled_dot_product_attention

import uncollapse as uc
from tests.attention.parity import MASKS, RULES, Stack, assert_same, evaluate, masking, stacks

FLOAT64 = 1e-9  # products of at most a hundred terms, each good to 1e-16, through four layers
FLOAT32 = 2e-4  # the same with 1e-7; scores of RealFormer grow to about 50
BACKENDS = pytest.mark.parametrize("backend", ["carried", "stacked"])
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@BACKENDS
@MANY
@given(stack=stacks(torch.float64))
def test_torch_tiles_are_the_reference_in_float64(backend, stack):
    assert_same(evaluate(stack, backend), evaluate(stack, "reference"), FLOAT64)


@BACKENDS
@MANY
@given(stack=stacks(torch.float32))
def test_compiled_tiles_are_the_reference_in_float32(backend, stack):
    assert_same(evaluate(stack, backend), evaluate(stack, "reference"), FLOAT32)


@BACKENDS
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mask", MASKS)
def test_every_rule_with_every_mask(backend, rule, mask):
    stack = Stack(queries=70, keys=70, heads=4, value_size=5)
    stack.arguments = {"rule": RULES[rule], **masking(mask, stack, torch.float64)}
    assert_same(evaluate(stack, backend), evaluate(stack, "reference"), FLOAT64)


@BACKENDS
def test_inference_gives_what_training_gives(backend):
    stack = Stack(queries=100, keys=100, dtype=torch.float32, arguments={"is_causal": True})
    trained, _ = stack.run(stack.inputs(), backend)
    with torch.no_grad():
        inferred, state = stack.run(stack.inputs(), backend)
    for ours, theirs in zip(inferred, trained, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)
    assert state.layer == 4


def _errors(run, truth):
    """Root mean square difference of outputs, and of gradients."""

    def distance(ours, theirs):
        total = sum((a.double() - b.double()).square().sum() for a, b in zip(ours, theirs, strict=True))
        return (total / sum(b.numel() for b in theirs)).sqrt().item()

    return distance(run[0], truth[0]), distance(run[1], truth[1])


def _gradients(stack, outs, layers):
    stack.loss(outs).backward()
    return [o.detach() for o in outs], [t.grad for layer in layers for t in layer]


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", ["self_attention", "hopfield", "realformer-mean"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_rounding_is_at_most_twice_that_of_torch_attention(backend, dtype, rule, is_causal):
    stack = Stack(queries=200, keys=200, size=32, value_size=32, heads=2)
    stack.layers = [tuple(t.to(dtype).double() for t in layer) for layer in stack.layers]

    def ours(name, kind):
        layers = stack.inputs(kind)
        outs, _ = stack.run(layers, name, rule=RULES[rule], is_causal=is_causal)
        return _gradients(stack, outs, layers)

    def torchs(kind):
        layers = stack.inputs(kind)
        outs = [scaled_dot_product_attention(*layer, is_causal=is_causal) for layer in layers]
        return _gradients(stack, outs, layers)

    mine = _errors(ours(backend, dtype), ours("reference", torch.float64))
    theirs = _errors(torchs(dtype), torchs(torch.float64))
    assert mine[0] <= 2 * theirs[0]
    assert mine[1] <= 2 * theirs[1]


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1, 70), (3, 70, 1), (2, 3, 70, 70), (70,)])
def test_an_additive_mask_that_learns_gets_its_gradient(backend, dtype, shape):
    stack = Stack(heads=3, groups=3, queries=70, keys=70)
    results = []
    for name in (backend, "reference"):
        mask = torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=dtype).view(shape).requires_grad_()
        outs, _ = stack.run(stack.inputs(dtype), name, attn_mask=mask)
        stack.loss(outs).backward()
        results.append(mask.grad)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@BACKENDS
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("rows", [(0, 130), (5, 6), (60, 70), (64, 128), (120, 200), (130, 130)])
def test_some_rows_of_the_scores_are_those_rows(backend, is_causal, rows):
    stack = Stack(queries=130, keys=130)
    _, state = stack.run(stack.inputs(), backend, is_causal=is_causal)
    torch.testing.assert_close(state.rows(*rows), state.scores()[:, :, slice(*rows)], rtol=0, atol=1e-12)


@BACKENDS
def test_a_loss_of_the_scores_reaches_every_layer(backend):
    stack = Stack(queries=70, keys=70, arguments={"is_causal": True})
    seen = torch.ones(70, 70, dtype=torch.bool).tril()
    results = []
    for name in (backend, "reference"):
        layers = stack.inputs()
        outs, state = stack.run(layers, name)
        (stack.loss(outs) + state.scores()[..., seen].square().sum()).backward()
        results.append([layer[0].grad for layer in layers] + [layer[1].grad for layer in layers])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=FLOAT64, atol=FLOAT64)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
class TestDropout:
    def run(self, backend, dtype, seed, p=0.4):
        torch.manual_seed(seed)
        stack = Stack(queries=70, keys=70, dtype=dtype)
        return evaluate(stack, backend, dropout_p=p)

    def test_the_seed_decides(self, backend, dtype):
        first, again, other = (self.run(backend, dtype, seed) for seed in (1, 1, 2))
        assert_same(again, first, 0.0)
        assert not torch.equal(other.outs[0], first.outs[0])

    def test_backward_drops_what_forward_dropped(self, backend, dtype):
        """The output is linear in v, so its gradient is the dropped weights themselves."""
        torch.manual_seed(3)
        q, k = torch.randn(2, 1, 1, 70, 4, dtype=dtype)
        v = torch.eye(70, dtype=dtype).view(1, 1, 70, 70).requires_grad_()
        out, _ = uc.hopfield_attention(q, k, v, dropout_p=0.5, backend=backend)  # out is the weights
        out[..., 5, :].sum().backward()
        torch.testing.assert_close(v.grad.sum(dim=-1)[0, 0], 70 * out[0, 0, 5].detach(), rtol=1e-5, atol=1e-6)
        assert 20 < int((out[0, 0, 5] == 0).sum()) < 50

    def test_the_mean_is_kept_and_one_drops_everything(self, backend, dtype):
        q, k = torch.randn(2, 4, 4, 64, 8, dtype=dtype)
        v = torch.ones(4, 4, 64, 1, dtype=dtype)
        torch.manual_seed(0)
        out, _ = uc.hopfield_attention(q, k, v, dropout_p=0.3, backend=backend)
        assert abs(out.mean().item() - 1.0) < 0.02  # 1,024 rows, each with a spread below 0.3
        out, _ = uc.hopfield_attention(q, k, v, dropout_p=1.0, backend=backend)
        assert out.abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_tiles_drop_the_same_weights(dtype, monkeypatch):
    stack = Stack(queries=70, keys=70, dtype=dtype)
    results = []
    for backend, native in (("carried", "1"), ("stacked", "1"), ("carried", "0"), ("stacked", "0")):
        monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
        torch.manual_seed(5)
        results.append(evaluate(stack, backend, dropout_p=0.2))
    for result in results[1:]:
        assert_same(result, results[0], FLOAT32)


@BACKENDS
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["q", "k", "v"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_not_a_number_comes_out_where_it_does_from_the_reference(backend, value, place, is_causal):
    layer = [torch.randn(1, 2, 70, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    layer[place][0, 0, 30, 2] = value
    ours, _ = uc.hopfield_attention(*layer, is_causal=is_causal, backend=backend)
    theirs, _ = uc.hopfield_attention(*layer, is_causal=is_causal, backend="reference")
    assert torch.equal(ours.isfinite(), theirs.isfinite())


@BACKENDS
def test_two_threads_inside_a_layer_change_nothing(backend):
    stack = Stack(queries=130, keys=130, heads=6, groups=3, dtype=torch.float32, arguments={"is_causal": True})
    one = evaluate(stack, backend)
    torch.set_num_threads(2)
    try:
        assert_same(evaluate(stack, backend), one, 1e-6)
    finally:
        torch.set_num_threads(1)


@BACKENDS
def test_decoding_row_by_row_gives_the_rows_of_the_whole(backend):
    stack = Stack(queries=20, keys=20, size=8, value_size=8, dtype=torch.float32)
    layers = [tuple(t.detach() for t in layer) for layer in stack.inputs()]
    with torch.no_grad():
        whole, _ = stack.run(layers, backend, is_causal=True)
        for t in range(20):
            rows, state = stack.run(
                [(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1]) for q, k, v in layers], backend
            )
            assert state.shape[2:] == (1, t + 1)
            for row, full in zip(rows, whole, strict=True):
                torch.testing.assert_close(row[:, :, 0], full[:, :, t], rtol=1e-5, atol=1e-5)


@BACKENDS
def test_autocast_does_not_shorten_the_scores(backend):
    stack = Stack(queries=70, keys=70, dtype=torch.float64)
    plain = evaluate(stack, backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(evaluate(stack, backend), plain, FLOAT64)


@BACKENDS
def test_no_queries_or_no_keys(backend):
    q, k, v = torch.randn(1, 2, 0, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 3)
    out, state = uc.hopfield_attention(q, k, v, backend=backend)
    assert out.shape == (1, 2, 0, 3)
    assert state.scores().shape == (1, 2, 0, 5)
    out, _ = uc.hopfield_attention(torch.randn(1, 2, 5, 4), k[:, :, :0], v[:, :, :0], backend=backend)
    assert torch.equal(out, torch.zeros(1, 2, 5, 3))
