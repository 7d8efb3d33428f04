"""Masks of every kind: which keys count for the largest logit and for the mean of values."""

import pytest
import torch

from uncollapse.models.editing import AttentionCall
from uncollapse.remedies.qk_clip import _compiled_rows, largest_logits
from uncollapse.remedies.value_mixing import mean_of_visible

HIDDEN = (-torch.inf, torch.finfo(torch.float64).min, -1e9, -1e4)  # what people add to hide a key


def made(tokens, kind):
    """A call of 4 heads on 2 keys, and which keys its queries see."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, tokens, 16, generator=generator, dtype=torch.float64) for heads in (4, 2))
    seen = torch.ones(2, 1, tokens, tokens, dtype=torch.bool)
    if kind != "all":
        seen = seen.tril()
    mask = None
    if kind not in ("all", "causal"):
        seen = seen & (torch.arange(tokens) < tokens - 3)  # padding
        mask = seen if kind == "bool" else torch.full(seen.shape, 0.5).double().masked_fill(~seen, kind)
    return AttentionCall(q, k, k.flip(-1), attn_mask=mask, is_causal=kind == "causal"), seen


@pytest.mark.parametrize("tokens", [9, 192])  # in torch, and in the compiled pass where there is a compiler
@pytest.mark.parametrize("kind", ["all", "causal", "bool", *HIDDEN])
def test_the_largest_logit_is_one_of_seen_keys_without_what_is_added(kind, tokens):
    call, seen = made(tokens, kind)
    scores = 0.25 * call.query @ call.key.repeat_interleave(2, 1).mT
    wanted = scores.masked_fill(~seen, -torch.inf).amax((0, 2, 3)).float()
    torch.testing.assert_close(largest_logits(call), wanted, rtol=1e-6, atol=0)  # logits are float32
    if tokens < 100:
        assert _compiled_rows(call) is None


def test_a_logit_that_is_no_number_is_not_hidden_by_others():
    for tokens in (9, 192):
        call, _ = made(tokens, "causal")
        call.query[0, 1, 5, 0] = torch.nan
        assert largest_logits(call).isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("kind", ["bool", *HIDDEN])
def test_the_mean_is_over_seen_keys(kind):
    call, seen = made(9, kind)
    uniform = seen.double() / seen.sum(-1, keepdim=True)
    torch.testing.assert_close(mean_of_visible(call.value, call), uniform @ call.value, rtol=1e-12, atol=1e-12)
