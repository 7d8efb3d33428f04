"""Modern Hopfield Attention, written to be read: the definition every other backend is tested against.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ._coefficients import Coefficient
from ._storage import RoundedGradient, RoundedScores
from .state import HiddenState, score_dtype


class ReferenceState(HiddenState):
    """H_n as one tensor."""

    backend = "reference"

    def __init__(self, layer: int, hidden: Tensor, stored: torch.dtype) -> None:
        super().__init__(layer, (*hidden.shape,), stored, hidden.device)
        self.hidden = hidden  # (B, H, Q, K)

    def scores(self) -> Tensor:
        return self.hidden

    def clone(self) -> ReferenceState:
        return ReferenceState(self.layer, self.hidden.clone(), self.dtype)


def reference_attention(
    q: Tensor,  # (B, H, Q, D)
    k: Tensor,  # (B, G, K, D)
    v: Tensor,  # (B, G, K, Dv)
    state: ReferenceState | None,
    *,
    keep: Coefficient,  # a number, or one value for each head (H,)
    take: Coefficient,
    scale: float,
    stored: torch.dtype,  # of the scores that are passed on
    attn_mask: Tensor | None,  # broadcastable to (B, H, Q, K); bool: True is seen; float: added
    is_causal: bool,
    dropout_p: float,
) -> tuple[Tensor, ReferenceState]:
    """One layer: H_n = keep H_{n-1} + take S_n, out = softmax(H_n) V."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))  # G -> H heads
    wide = score_dtype(q.dtype)

    scores = scale * q.to(wide) @ k.to(wide).mT  # S_n: (B, H, Q, K)
    keep, take = (c.view(-1, 1, 1) if isinstance(c, Tensor) else c for c in (keep, take))
    hidden = take * scores if state is None else keep * inherited(state) + take * scores  # Eq. 54
    if stored == torch.float16:
        hidden = RoundedScores.apply(hidden)  # type: ignore[no-untyped-call]  # before the softmax

    weights = softmax_of_visible(masked(hidden, attn_mask, is_causal))  # a mask is never carried
    weights = functional.dropout(weights, dropout_p)
    out = weights @ v.to(wide)  # (B, H, Q, Dv)
    return out.to(v.dtype), ReferenceState(1 if state is None else state.layer + 1, hidden, stored)


def inherited(state: ReferenceState) -> Tensor:
    """H_{n-1}, whose gradient is rounded where scores are kept in two bytes."""
    if state.dtype != torch.float16:
        return state.hidden
    rounded: Tensor = RoundedGradient.apply(state.hidden)  # type: ignore[no-untyped-call]
    return rounded


def masked(hidden: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """The scores that go into the softmax: -inf where a key is not seen, a float mask added."""
    if is_causal:
        attn_mask = torch.ones(hidden.shape[-2:], dtype=torch.bool, device=hidden.device).tril()
    if attn_mask is None:
        return hidden
    if attn_mask.dtype == torch.bool:
        return hidden.masked_fill(~attn_mask, float("-inf"))
    return hidden + attn_mask.to(hidden.dtype)


def softmax_of_visible(hidden: Tensor) -> Tensor:
    """Softmax over the keys; a row that sees no key has weight 0 everywhere, and gradient 0."""
    fully_masked = (hidden == float("-inf")).all(dim=-1, keepdim=True)  # (B, H, Q, 1)
    return torch.softmax(hidden.masked_fill(fully_masked, 0.0), dim=-1).masked_fill(fully_masked, 0.0)
