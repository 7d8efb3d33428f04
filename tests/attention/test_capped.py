"""Soft caps and sinks: the definition against other people's, and the C++ tiles against the definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.attention import tile_engine
from uncollapse.attention.capped import capped_attention, capped_forward

needs_tiles = pytest.mark.skipif(
    tile_engine(torch.zeros(1, 1, 1, 1)) != "cpp", reason="the C++ tiles cannot be built here"
)


def tensors(batch=2, heads=4, groups=2, queries=7, keys=7, size=8, values=8, dtype=torch.float64, seed=0):
    """q, k, v and a sink, with scores of several units."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, queries, size), (batch, groups, keys, size), (batch, groups, keys, values), (heads,)]
    return [(2.0 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype) for shape in shapes]


def with_gradients(q, k, v, sink, upstream, **arguments):
    """The output and the gradients of q, k, v and, if it is used, the sink."""
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v, sink)]
    used = leaves if arguments.pop("with_sink") else leaves[:3]
    out = capped_attention(*leaves[:3], sink=leaves[3] if len(used) == 4 else None, enable_gqa=True, **arguments)
    return [out.detach(), *torch.autograd.grad(out, used, upstream.to(out.dtype))]


class TestDefinition:
    def test_without_cap_and_sink_it_is_sdpa(self):
        q, k, v, _ = tensors()
        out = capped_attention(q, k, v, is_causal=True, enable_gqa=True)
        truth = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        torch.testing.assert_close(out, truth, rtol=1e-12, atol=1e-12)

    def test_the_cap_is_gemmas(self):
        gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
        q, k, v, _ = tensors()
        module = torch.nn.Module().eval()
        module.num_key_value_groups = 2
        mask = torch.full((7, 7), -1e9, dtype=torch.float64).triu(1)[None, None]
        truth, _ = gemma.eager_attention_forward(module, q, k, v, mask, scaling=0.3, softcap=5.0)
        out = capped_attention(q, k, v, cap=5.0, is_causal=True, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(out.transpose(1, 2), truth, rtol=1e-5, atol=1e-6)  # its softmax runs in float32

    def test_the_sink_is_that_of_gpt_oss(self):
        gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
        q, k, v, sink = tensors()
        module = torch.nn.Module().eval()
        module.num_key_value_groups, module.sinks = 2, sink
        truth, _ = gpt_oss.eager_attention_forward(module, q, k, v, None, scaling=0.3)
        out = capped_attention(q, k, v, sink=sink, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(out.transpose(1, 2), truth, rtol=1e-12, atol=1e-12)

    def test_gradients(self):
        q, k, v, sink = (t.requires_grad_() for t in tensors(batch=1, heads=2, groups=1, queries=3, keys=3, size=2))

        def attention(q, k, v, sink):
            return capped_attention(q, k, v, cap=3.0, sink=sink, is_causal=True, enable_gqa=True)

        assert torch.autograd.gradcheck(attention, (q, k, v, sink))

    def test_a_row_that_sees_no_key_gives_zeros_and_no_gradient(self):
        q, k, v, sink = (t.requires_grad_() for t in tensors(groups=4))
        mask = torch.ones(7, 7, dtype=torch.bool)
        mask[2] = False
        out = capped_attention(q, k, v, cap=3.0, sink=sink, attn_mask=mask)
        assert not out[:, :, 2].any()
        (gradient,) = torch.autograd.grad(out.sum(), q)
        assert not gradient[:, :, 2].any()
        assert gradient.isfinite().all()


def masks(kind, batch, heads, queries, keys, seed):
    """Arguments of a mask of this kind, some rows without any visible key."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "causal" and queries == keys:
        return {"is_causal": True}
    if kind == "bool":
        return {"attn_mask": torch.rand(batch, 1, queries, keys, generator=generator) < 0.7}
    if kind == "float":
        return {"attn_mask": torch.randn(heads, queries, keys, generator=generator)}
    return {}


@needs_tiles
class TestTiles:
    @settings(max_examples=60)
    @given(
        batch=st.integers(1, 2),
        groups=st.integers(1, 2),
        shared=st.integers(1, 3),
        queries=st.sampled_from([1, 3, 64, 65, 100]),
        keys=st.sampled_from([1, 17, 64, 100]),
        size=st.sampled_from([3, 8, 16]),
        values=st.sampled_from([5, 16]),
        cap=st.sampled_from([None, 2.0, 50.0]),
        with_sink=st.booleans(),
        mask=st.sampled_from(["none", "causal", "bool", "float"]),
        seed=st.integers(0, 99),
    )
    def test_are_the_definition(self, batch, groups, shared, queries, keys, size, values, cap, with_sink, mask, seed):
        heads = groups * shared
        given_tensors = tensors(batch, heads, groups, queries, keys, size, values, seed=seed)
        more = masks(mask, batch, heads, queries, keys, seed)
        upstream = torch.randn(batch, heads, queries, values, generator=torch.Generator().manual_seed(seed))
        truth = with_gradients(*given_tensors, upstream, cap=cap, with_sink=with_sink, **more)
        ours = with_gradients(*(t.float() for t in given_tensors), upstream, cap=cap, with_sink=with_sink, **more)
        for a, b in zip(ours, truth, strict=True):  # float32 scores of up to 100 units round at 1e-5
            torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-4 * max(1.0, float(b.abs().max())))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_two_bytes_are_as_exact_as_sdpa(self, dtype):
        q, k, v, _ = (t.to(dtype) for t in tensors(groups=4))
        truth = capped_attention(q.double(), k.double(), v.double(), is_causal=True)
        sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        ours = capped_attention(q, k, v, is_causal=True)
        assert ours.dtype == dtype
        assert (ours - truth).abs().max() <= 1.5 * (sdpa - truth).abs().max()

    def test_dropout_drops_the_same_weights_in_both_passes(self):
        q, k, _, sink = tensors(groups=4, dtype=torch.float32)
        v = torch.eye(7).expand(2, 4, 7, 7).clone().requires_grad_()
        weights = capped_attention(q, k, v, cap=5.0, sink=sink, dropout_p=0.5)  # (B, H, Q, K)
        upstream = torch.randn_like(weights)
        (gradient,) = torch.autograd.grad(weights, v, upstream)
        torch.testing.assert_close(gradient, weights.detach().mT @ upstream)
        whole = capped_attention(q, k, v, cap=5.0, sink=sink)
        kept = weights != 0
        assert 0.3 < kept.double().mean() < 0.7
        torch.testing.assert_close(weights[kept], 2.0 * whole[kept])

    def test_a_sink_of_minus_infinity_is_none(self):
        q, k, v, sink = tensors(groups=4, dtype=torch.float32)
        with_none = capped_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(capped_attention(q, k, v, sink=sink - math.inf, is_causal=True), with_none)

    def test_the_operators_keep_the_rules_of_torch(self):
        q, k, v, sink = (t.requires_grad_() for t in tensors(groups=4, dtype=torch.float32))
        arguments = {"cap": 5.0, "scale": 0.5, "is_causal": True, "dropout_p": 0.0}
        torch.library.opcheck(capped_forward, (q, k, v, sink, None, None), arguments)

    def test_compiles_without_a_graph_break(self):
        q, k, v, sink = (t.requires_grad_() for t in tensors(groups=4, dtype=torch.float32))

        def attention(q, k, v, sink):
            return capped_attention(q, k, v, cap=5.0, sink=sink, is_causal=True).square().sum()

        compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
        for ours, truth in zip(
            torch.autograd.grad(compiled(q, k, v, sink), (q, k, v, sink)),
            torch.autograd.grad(attention(q, k, v, sink), (q, k, v, sink)),
            strict=True,
        ):
            torch.testing.assert_close(ours, truth)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cap": 0.0}, "cap must be a positive number or None, got 0.0"),
        ({"cap": math.inf}, "cap must be a positive number or None, got inf"),
        ({"sink": torch.zeros(3)}, r"sink must be one number for each of the 4 heads, got \(3,\)"),
    ],
)
def test_bad_arguments(arguments, message):
    q, k, v, _ = tensors(groups=4)
    with pytest.raises(ValueError, match=message):
        capped_attention(q, k, v, **arguments)
