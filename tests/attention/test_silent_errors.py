"""What once gave wrong numbers without a word: now it is right, or it raises."""

import math

import pytest
import torch
from torch.autograd import forward_ad

import uncollapse as uc

FAST = ("auto", "carried", "stacked")
every_fast_backend = pytest.mark.parametrize("backend", FAST)


def tensors(tokens=6, size=4, **options):
    torch.manual_seed(0)
    return torch.randn(3, 1, 2, tokens, size, dtype=torch.float64, **options)


def test_forward_mode_derivatives_are_those_of_the_reference():
    q, k, v = tensors()

    def output(k, backend):
        return uc.hopfield_attention(q, k, v, backend=backend)[0]

    tangent = torch.randn_like(k)
    _, exact = torch.func.jvp(lambda k: output(k, "reference"), (k,), (tangent,))
    step = 1e-6
    nearly = (output(k + step * tangent, "reference") - output(k - step * tangent, "reference")) / (2 * step)
    torch.testing.assert_close(exact, nearly, rtol=1e-6, atol=1e-8)


@every_fast_backend
def test_forward_mode_derivatives_are_refused_elsewhere(backend):
    q, k, v = tensors()
    with pytest.raises(RuntimeError, match="forward-mode derivatives need backend='reference'"):
        torch.func.jvp(lambda k: uc.hopfield_attention(q, k, v, backend=backend)[0], (k,), (torch.ones_like(k),))
    for place in range(3):
        with forward_ad.dual_level():
            given = [q, k, v]
            given[place] = forward_ad.make_dual(given[place], torch.ones_like(v))
            with pytest.raises(RuntimeError, match="forward-mode derivatives"):
                uc.hopfield_attention(*given, backend=backend)


@every_fast_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # C++ and torch tiles
def test_a_mask_changed_before_backward_is_noticed(backend, dtype):
    q, k, v = (t.to(dtype).requires_grad_() for t in tensors())
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    out, _ = uc.hopfield_attention(q, k, v, attn_mask=mask, backend=backend)
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_is_refused(backend, scale):
    with pytest.raises(ValueError, match="scale must be a finite number, got"):
        uc.hopfield_attention(*tensors(tokens=70), scale=scale, backend=backend)


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("empty", ["qk", "v", "qkv"])
def test_heads_of_size_zero_are_refused(backend, scale, empty):
    given = [t[..., :0] if name in empty else t for name, t in zip("qkv", tensors(tokens=70), strict=True)]
    with pytest.raises(ValueError, match="head sizes must be at least 1, got"):
        uc.hopfield_attention(*given, scale=scale, backend=backend)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys"), [(0, 2, 3, 3), (1, 0, 3, 3), (1, 2, 0, 3), (1, 2, 3, 0), (1, 2, 0, 0)]
)
def test_empty_inputs_are_as_in_the_reference(backend, batch, heads, queries, keys):
    if heads == 0:
        q, k, v = (torch.zeros(batch, heads, n, 4) for n in (queries, keys, keys))
        with pytest.raises(ValueError, match="must be a multiple of the 0 key/value heads"):
            uc.hopfield_attention(q, k, v, backend=backend)
        return
    q, k, v = (torch.randn(batch, heads, n, 4) for n in (queries, keys, keys))
    for inputs in ((q, k, v), tuple(t.clone().requires_grad_() for t in (q, k, v))):
        out, state = uc.hopfield_attention(*inputs, backend=backend)
        wanted, reference = uc.hopfield_attention(q, k, v, backend="reference")
        torch.testing.assert_close(out.detach(), wanted)
        assert state.scores().shape == reference.scores().shape


@pytest.mark.parametrize("changed", ["q", "k"])
def test_a_stacked_state_notices_that_its_queries_or_keys_were_changed(changed):
    q, k, v = tensors()
    _, state = uc.hopfield_attention(q, k, v, backend="stacked")
    kept = state.clone()
    wanted = state.scores()
    {"q": q, "k": k}[changed].mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        state.scores()
    with pytest.raises(RuntimeError, match="changed in place"):
        uc.hopfield_attention(*tensors(), state, backend="stacked")
    torch.testing.assert_close(kept.scores(), wanted)


def test_a_stacked_state_works_in_inference_mode_where_changes_are_not_counted():
    with torch.inference_mode():
        q, k, v = tensors()
        _, state = uc.hopfield_attention(q, k, v, backend="stacked")
        out, _ = uc.hopfield_attention(q, k, v, state, backend="stacked")
    assert out.isfinite().all()
