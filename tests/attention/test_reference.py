"""The reference against an independent loop, torch's attention, a peer, and properties that must hold."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention, softmax

from uncollapse import ScoreRule, hopfield_attention

RULES = {
    "hopfield": ScoreRule.hopfield(0.3),
    "hopfield-raw": ScoreRule.hopfield(0.7, start="raw"),
    "self_attention": ScoreRule.self_attention(),
    "realformer": ScoreRule.realformer(),
    "realformer-mean": ScoreRule.realformer(mean=True),
    "revit": ScoreRule.revit(0.4),
}
ROUNDING = {"rtol": 1e-10, "atol": 1e-12}  # float64: products of tens of terms, each good to 1e-16


def layers(n, *, b=2, h=4, g=None, q=5, k=7, d=3, dv=None, dtype=torch.float64, seed=0):
    """n layers of random queries, keys and values, large enough for a peaked softmax."""
    generator = torch.Generator().manual_seed(seed)

    def draw(heads, tokens, size):
        return torch.randn(b, heads, tokens, size, generator=generator, dtype=torch.float64).to(dtype)

    return [(2 * draw(h, q, d), draw(g or h, k, d), draw(g or h, k, dv or d)) for _ in range(n)]


def run(stack, **options):
    """The output of every layer and the last state; `scale` may be a list, one a layer."""
    state, outs = None, []
    scales = options.pop("scale", None)
    for i, (q, k, v) in enumerate(stack):
        scale = scales[i] if isinstance(scales, list) else scales
        out, state = hopfield_attention(q, k, v, state, backend="reference", scale=scale, **options)
        outs.append(out)
    return outs, state


def by_hand(stack, rule, mask, scales):
    """The definition once more, as loops over batch, heads, rows and keys, in Python floats."""
    hidden, outs = {}, []
    for n, (q, k, v) in enumerate(stack, start=1):
        keep, take = rule.coefficients(n)
        q, k, v = q.tolist(), k.tolist(), v.tolist()
        group = len(q[0]) // len(k[0])
        out = []
        for b in range(len(q)):
            for h in range(len(q[0])):
                keys, values = k[b][h // group], v[b][h // group]
                for i, query in enumerate(q[b][h]):
                    row = []
                    for j, key in enumerate(keys):
                        score = scales[n - 1] * sum(x * y for x, y in zip(query, key, strict=True))
                        hidden[b, h, i, j] = keep * hidden.get((b, h, i, j), 0.0) + take * score
                        row.append(hidden[b, h, i, j] + mask(b, h, i, j))
                    top = max(row)
                    weights = [math.exp(x - top) if top > -math.inf else 0.0 for x in row]
                    total = sum(weights) or 1.0
                    mixed = [
                        sum(w * value[c] for w, value in zip(weights, values, strict=True))
                        for c in range(len(values[0]))
                    ]
                    out.append([x / total for x in mixed])
        outs.append(torch.tensor(out, dtype=torch.float64).view(len(q), len(q[0]), len(q[0][0]), -1))
    return outs, hidden


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("masking", ["none", "causal", "bool", "float"])
def test_equals_a_loop_over_heads_rows_and_layers(rule, masking):
    q = k = 5
    stack = layers(4, h=4, g=2, q=q, k=k, d=3, dv=2)
    scales = [0.5, 1.3, 0.2, 0.9]
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(2, 1, q, k, generator=generator) > 0.4
    seen[0, 0, 2] = False  # a row that sees nothing
    added = torch.randn(4, q, 1, generator=generator, dtype=torch.float64).expand(4, q, k).clone()
    added[:, :, 1] -= 1.0
    options, mask = {
        "none": ({}, lambda b, h, i, j: 0.0),
        "causal": ({"is_causal": True}, lambda b, h, i, j: 0.0 if j <= i else -math.inf),
        "bool": ({"attn_mask": seen}, lambda b, h, i, j: 0.0 if seen[b, 0, i, j] else -math.inf),
        "float": ({"attn_mask": added}, lambda b, h, i, j: added[h, i, j].item()),
    }[masking]
    outs, state = run(stack, rule=rule, scale=scales, enable_gqa=True, **options)
    expected, hidden = by_hand(stack, rule, mask, scales)
    for out, wanted in zip(outs, expected, strict=True):
        torch.testing.assert_close(out, wanted, **ROUNDING)
    wanted = torch.tensor(list(hidden.values()), dtype=torch.float64).view(state.shape)
    torch.testing.assert_close(state.scores(), wanted, **ROUNDING)


@pytest.mark.parametrize("masking", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("rule", [ScoreRule.self_attention(), ScoreRule.hopfield(0.0, start="raw")], ids=str)
def test_without_inheritance_it_is_torch_attention(rule, masking):
    stack = layers(3, h=4, g=2, q=6, k=6, d=3, dv=5)
    options = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": torch.rand(2, 4, 6, 6) > 0.3},
        "float": {"attn_mask": torch.randn(6, 6, dtype=torch.float64)},
    }[masking]
    outs, _ = run(stack, rule=rule, enable_gqa=True, **options)
    for out, (q, k, v) in zip(outs, stack, strict=True):
        torch.testing.assert_close(out, scaled_dot_product_attention(q, k, v, enable_gqa=True, **options), **ROUNDING)


@pytest.mark.parametrize("start", ["zero", "raw"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_through_four_layers(start, is_causal):
    stack = layers(4, b=1, h=2, g=1, q=3, k=3, d=2)
    flat = [t.requires_grad_() for layer in stack for t in layer]

    def outputs(*tensors):
        stack = [tensors[i : i + 3] for i in range(0, len(tensors), 3)]
        outs, state = run(stack, alpha_hidden=0.6, start=start, is_causal=is_causal, enable_gqa=True)
        return *outs, state.scores()

    assert torch.autograd.gradcheck(outputs, flat)


def test_a_mask_that_hides_a_whole_row_has_finite_gradients():
    seen = torch.ones(5, 5, dtype=torch.bool)
    seen[2] = False
    stack = layers(3, q=5, k=5)
    for q, _, _ in stack:
        q.requires_grad_()
    outs, _ = run(stack, attn_mask=seen)
    sum(out.sum() for out in outs).backward()
    assert all(torch.equal(out[:, :, 2], torch.zeros_like(out[:, :, 2])) for out in outs)
    assert all(q.grad.isfinite().all() for q, _, _ in stack)


def test_realformer_equals_the_residual_attention_of_x_transformers():
    attend = pytest.importorskip("x_transformers.attend", reason="x-transformers comes with the dev extra")
    peer = attend.Attend(causal=False, heads=4, custom_attn_fn=partial(softmax, dim=-1))  # its own is in float32
    stack, previous = layers(4, q=6, k=6), None
    outs, state = run(stack, rule=ScoreRule.realformer())
    for out, (q, k, v) in zip(outs, stack, strict=True):
        wanted, intermediates = peer(q, k, v, prev_attn=previous)
        previous = intermediates.pre_softmax_attn  # scaled scores plus what was inherited
        torch.testing.assert_close(out, wanted, **ROUNDING)
    torch.testing.assert_close(state.scores(), previous, **ROUNDING)


def test_dropout_drops_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    (q, k, _), *_ = layers(1, b=64, q=16, k=16)
    v = torch.ones(64, 4, 16, 1, dtype=torch.float64)
    out, _ = hopfield_attention(q, k, v, dropout_p=0.25)
    assert out.std() > 0.05
    assert out.mean().item() == pytest.approx(1.0, abs=4 * out.std().item() / math.sqrt(out.numel()))
    nothing, _ = hopfield_attention(q, k, v, dropout_p=1.0)
    assert torch.equal(nothing, torch.zeros_like(nothing))


SIZES = {
    "b": st.integers(1, 2),
    "h": st.sampled_from([1, 2, 4]),
    "q": st.integers(1, 6),
    "k": st.integers(1, 6),
    "d": st.integers(1, 4),
}
RULE = st.sampled_from(list(RULES.values()))
SEED = st.integers(0, 10_000)


@settings(max_examples=40, deadline=None)
@given(rule=RULE, seed=SEED, **SIZES)
def test_a_constant_added_to_a_row_of_scores_changes_nothing(rule, seed, **sizes):
    stack = layers(3, **sizes, seed=seed)
    shift = torch.randn(sizes["b"], sizes["h"], sizes["q"], 1, dtype=torch.float64)
    plain, _ = run(stack, rule=rule)
    shifted, _ = run(stack, rule=rule, attn_mask=shift)
    # the same through the scores themselves: a query coordinate that meets a constant key coordinate
    wider = [(torch.cat([q, shift], -1), torch.cat([k, torch.ones_like(k[..., :1])], -1), v) for q, k, v in stack]
    carried, _ = run(wider, rule=rule, scale=1 / math.sqrt(sizes["d"]))
    for out, a, b in zip(plain, shifted, carried, strict=True):
        torch.testing.assert_close(a, out, **ROUNDING)
        torch.testing.assert_close(b, out, **ROUNDING)


@settings(max_examples=40, deadline=None)
@given(rule=RULE, seed=SEED, **SIZES)
def test_heads_are_independent(rule, seed, **sizes):
    stack = layers(3, **sizes, seed=seed)
    together, state = run(stack, rule=rule)
    for head in range(sizes["h"]):
        alone, alone_state = run([tuple(t[:, head : head + 1] for t in layer) for layer in stack], rule=rule)
        for out, wanted in zip(together, alone, strict=True):
            torch.testing.assert_close(out[:, head : head + 1], wanted, **ROUNDING)
        torch.testing.assert_close(state.scores()[:, head : head + 1], alone_state.scores(), **ROUNDING)


@settings(max_examples=40, deadline=None)
@given(rule=RULE, seed=SEED, order=st.permutations(range(5)))
def test_the_order_of_keys_does_not_matter(rule, seed, order):
    stack = layers(3, k=5, seed=seed)
    outs, _ = run(stack, rule=rule)
    permuted, _ = run([(q, k[:, :, order], v[:, :, order]) for q, k, v in stack], rule=rule)
    for out, wanted in zip(permuted, outs, strict=True):
        torch.testing.assert_close(out, wanted, **ROUNDING)


@settings(max_examples=40, deadline=None)
@given(alpha_hidden=st.floats(0, 1), seed=SEED, **SIZES)
def test_one_layer_started_raw_is_plain_attention(alpha_hidden, seed, **sizes):
    ((q, k, v),) = stack = layers(1, **sizes, seed=seed)
    (out,), _ = run(stack, alpha_hidden=alpha_hidden, start="raw")
    torch.testing.assert_close(out, scaled_dot_product_attention(q, k, v), **ROUNDING)


@settings(max_examples=40, deadline=None)
@given(rule=RULE, seed=SEED, row=st.integers(0, 4), additive=st.booleans())
def test_a_fully_masked_row_gives_zeros_and_leaves_the_others_alone(rule, seed, row, additive):
    stack = layers(3, q=5, seed=seed)
    mask = torch.ones(5, 1, dtype=torch.bool)
    mask[row] = False
    if additive:
        mask = torch.zeros(5, 1, dtype=torch.float64).masked_fill(~mask, -math.inf)
    plain, _ = run(stack, rule=rule)
    outs, state = run(stack, rule=rule, attn_mask=mask)
    others = [i for i in range(5) if i != row]
    for out, wanted in zip(outs, plain, strict=True):
        assert torch.equal(out[:, :, row], torch.zeros_like(out[:, :, row]))
        torch.testing.assert_close(out[:, :, others], wanted[:, :, others], **ROUNDING)
    assert state.scores().isfinite().all()  # the mask is not carried


@settings(max_examples=30, deadline=None)
@given(rule=RULE, seed=SEED, dtype=st.sampled_from([torch.bfloat16, torch.float16]))
def test_half_precision_agrees_with_float32_within_its_rounding(rule, seed, dtype):
    half = layers(4, q=6, k=6, d=4, dtype=dtype, seed=seed)
    outs, state = run(half, rule=rule)
    wanted, full = run([tuple(t.float() for t in layer) for layer in half], rule=rule)
    assert state.dtype == torch.float32
    torch.testing.assert_close(state.scores(), full.scores(), rtol=1e-5, atol=1e-5)  # carried in float32 all the way
    for out, exact in zip(outs, wanted, strict=True):
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)  # one rounding, of out
