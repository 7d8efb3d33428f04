"""One call of attention: torch's own arguments and what remedies add to them, how it is run, and its weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from uncollapse.attention.capped import capped_attention
from uncollapse.attention.reference import masked

SDPA = functional.scaled_dot_product_attention


class AttentionCall(NamedTuple):
    """The arguments of `scaled_dot_product_attention`, by the same names and in the same order, then the remedies'."""

    query: Tensor  # (B, H, Q, D)
    key: Tensor  # (B, G, K, D)
    value: Tensor  # (B, G, K, Dv)
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    cap: float | None = None  # scores become cap tanh(scores / cap), before the mask
    sink: Tensor | None = None  # (H,): one more logit in the softmax's sum

    @property
    def grouped(self) -> bool:
        """Whether heads share keys and values."""
        return self.query.shape[1] != self.key.shape[1]

    def with_mask(self) -> AttentionCall:
        """The same call with a mask in place of a causal one over more keys than queries, which torch aligns left."""
        queries, keys = self.query.shape[-2], self.key.shape[-2]
        if not self.is_causal or queries == keys:
            return self
        seen = torch.ones(queries, keys, dtype=torch.bool, device=self.query.device).tril()
        return self._replace(attn_mask=seen, is_causal=False)

    def in_four_dimensions(self) -> AttentionCall:
        """The same call where a mask has four dimensions, and so have queries, keys and values without heads."""
        query, key, value, mask = self[:4]
        if query.dim() == 3:
            query, key, value = (t.unsqueeze(1) for t in (query, key, value))
            mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        if mask is not None and mask.dim() < 4:
            mask = mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))
        return self._replace(query=query, key=key, value=value, attn_mask=mask)


def as_given(call: AttentionCall) -> Tensor:
    """Torch's own attention with the arguments of the call, whatever their dimensions."""
    q, k, v, mask, dropout, causal, scale, grouped, *_ = call
    return SDPA(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)


def attend(call: AttentionCall) -> Tensor:
    """The attention of a call (B, H, Q, Dv): torch's own, unless there is a cap or a sink."""
    call = call._replace(enable_gqa=call.grouped)
    if call.cap is None and call.sink is None:
        return as_given(call)
    q, k, v, mask, dropout, causal, scale, grouped, cap, sink = call.with_mask()
    more: dict[str, Any] = {"scale": scale, "dropout_p": dropout, "enable_gqa": grouped}
    return capped_attention(q, k, v, cap=cap, sink=sink, attn_mask=mask, is_causal=causal, **more)


def weights_of(call: AttentionCall) -> Tensor:
    """The attention weights of a call (B, H, Q, K), written plainly; where there is a sink, rows sum to less than 1."""
    call = call.with_mask()
    key = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
    scores = scale * call.query @ key.mT
    if call.cap is not None:
        scores = call.cap * torch.tanh(scores / call.cap)
    scores = masked(scores, call.attn_mask, call.is_causal)
    if call.sink is not None:
        column = call.sink.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
    return weights.nan_to_num(0.0)  # a row that sees no key
