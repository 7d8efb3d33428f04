"""hopfield_attention as a user meets it: states go in and out, and bad input gets one clear sentence."""

import re

import pytest
import torch

from uncollapse import ScoreRule, hopfield_attention


def tensors(b=1, h=4, g=4, q=5, k=5, d=3, dv=3, dtype=torch.float32):
    return (
        torch.randn(b, h, q, d, dtype=dtype),
        torch.randn(b, g, k, d, dtype=dtype),
        torch.randn(b, g, k, dv, dtype=dtype),
    )


def test_alpha_hidden_and_start_are_the_hopfield_rule():
    q, k, v = tensors()
    for start in ("zero", "raw"):
        one, _ = hopfield_attention(q, k, v, alpha_hidden=0.3, start=start)
        two, _ = hopfield_attention(q, k, v, rule=ScoreRule.hopfield(0.3, start))
        assert torch.equal(one, two)


def test_a_state_counts_layers_and_can_be_used_twice_after_clone():
    q, k, v = tensors()
    _, first = hopfield_attention(q, k, v)
    kept = first.clone()
    one, second = hopfield_attention(q, k, v, first)
    two, _ = hopfield_attention(q, k, v, kept)
    assert (kept.layer, second.layer) == (1, 2)
    assert torch.equal(one, two)


def test_two_passes_in_turn_do_not_disturb_each_other():
    a, b = tensors(), tensors()
    _, state_a = hopfield_attention(*a)
    _, state_b = hopfield_attention(*b)
    out_a, _ = hopfield_attention(*a, state_a)
    out_b, _ = hopfield_attention(*b, state_b)
    alone, state = hopfield_attention(*a)
    alone, _ = hopfield_attention(*a, state)
    assert torch.equal(out_a, alone)
    assert not torch.equal(out_a, out_b)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("backend", ["carried", "stacked", "reference"])
def test_a_state_names_the_engine_that_ran(backend, gradients, monkeypatch):
    def engine(dtype=torch.float32, **options):
        inputs = [t.requires_grad_(gradients) for t in tensors(dtype=dtype)]
        _, state = hopfield_attention(*inputs, backend=backend, **options)
        assert state.clone().engine == state.engine
        return hopfield_attention(*inputs, state, **options)[1].engine

    compiled = "torch" if backend == "reference" else "cpp"
    assert (engine(), engine(torch.bfloat16), engine(torch.float64)) == (compiled, compiled, "torch")
    assert engine(attn_mask=torch.zeros(5, 5)) == compiled
    assert engine(attn_mask=torch.zeros(5, 5, requires_grad=True)) == "torch"  # C++ has no gradient of a mask
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", "0")
    assert engine() == "torch"


def test_stacked_layers_of_different_head_sizes_run_in_torch():
    _, state = hopfield_attention(*tensors(d=3), backend="stacked")
    _, state = hopfield_attention(*tensors(d=2), state)
    assert state.engine == "torch"


def test_settings_are_keyword_only():
    q, k, v = tensors()
    with pytest.raises(TypeError, match="positional argument"):
        hopfield_attention(q, k, v, None, 0.5)


BAD = {
    "alpha_hidden above one": (tensors(), {"alpha_hidden": 1.5}, "alpha_hidden must lie in [0, 1], got 1.5."),
    "unknown start": (tensors(), {"start": "cold"}, "start must be one of zero, raw, got 'cold'."),
    "unknown backend": (tensors(), {"backend": "flash"}, "backend must be one of auto, reference"),
    "unknown rule": (
        tensors(),
        {"rule": "realformer"},
        "rule must be ScoreRule.hopfield(alpha_hidden, start), ScoreRule.self_attention(), ",
    ),
    "heads that differ": (tensors(g=2), {}, "q has 4 heads and k has 2; pass enable_gqa=True"),
    "heads that do not divide": (
        tensors(g=3),
        {"enable_gqa": True},
        "the 4 query heads must be a multiple of the 3 key/value heads.",
    ),
    "causal, Q != K": (tensors(q=2), {"is_causal": True}, "is_causal=True needs as many queries as keys, got 2 and 5"),
    "causal and a mask": (
        tensors(),
        {"is_causal": True, "attn_mask": torch.ones(5, 5, dtype=torch.bool)},
        "attn_mask and is_causal=True cannot go together",
    ),
    "mask of another shape": (
        tensors(),
        {"attn_mask": torch.ones(3, 5, dtype=torch.bool)},
        "attn_mask of shape (3, 5) does not broadcast to (1, 4, 5, 5)",
    ),
    "mask with a larger batch": (
        tensors(),
        {"attn_mask": torch.ones(2, 1, 5, 5, dtype=torch.bool)},
        "attn_mask of shape (2, 1, 5, 5) does not broadcast",
    ),
    "integer mask": (
        tensors(),
        {"attn_mask": torch.ones(5, 5, dtype=torch.long)},
        "attn_mask must be bool or floating point, got torch.int64.",
    ),
    "dropout above one": (tensors(), {"dropout_p": 2.0}, "dropout_p must lie in [0, 1], got 2.0."),
    "three dimensions": (
        tuple(t[0] for t in tensors()),
        {},
        "q must have four dimensions (batch, heads, tokens, size), got (4, 5, 3).",
    ),
    "integers": (tuple(t.long() for t in tensors()), {}, "q must be floating point, got torch.int64."),
    "mixed dtypes": (
        (*tensors()[:2], tensors()[2].double()),
        {},
        "q, k and v must share dtype and device, got torch.float32 on cpu for q and torch.float64 on cpu for v.",
    ),
    "head sizes that differ": ((tensors(d=2)[0], *tensors()[1:]), {}, "k must have the batch and head size of q"),
    "values of other tokens": ((*tensors()[:2], tensors(k=4)[2]), {}, "v must have the batch, heads and tokens of k"),
    "state of another kind": (tensors(), {"state": torch.zeros(1)}, "state must be the HiddenState of the previous"),
}


@pytest.mark.parametrize(("inputs", "options", "sentence"), BAD.values(), ids=BAD)
def test_bad_input_gets_one_sentence(inputs, options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        hopfield_attention(*inputs, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (tensors(k=6), "needs a state of shape (1, 4, 5, 5), got (1, 4, 5, 6)"),
        (tensors(dtype=torch.float64), "needs a state of dtype torch.float32, got torch.float64"),
        (tuple(t.to("meta") for t in tensors()), "needs a state of device cpu, got meta"),
    ],
    ids=["shape", "dtype", "device"],
)
def test_a_state_that_does_not_fit_is_refused(other, sentence):
    _, state = hopfield_attention(*other, backend="reference")
    with pytest.raises(ValueError, match=re.escape(sentence)):
        hopfield_attention(*tensors(), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_scores_are_still_carried_in_float32(dtype):
    q, k, v = tensors(dtype=dtype)
    state = plain = None
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, state = hopfield_attention(q, k, v, state)
        wanted, plain = hopfield_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), plain)
    assert out.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    assert torch.equal(out, wanted)


def test_a_float_mask_may_have_another_precision():
    q, k, v = tensors()
    mask = torch.randn(5, 5, dtype=torch.float64)
    assert torch.equal(
        hopfield_attention(q, k, v, attn_mask=mask)[0], hopfield_attention(q, k, v, attn_mask=mask.float())[0]
    )
