"""Softmax of one strip of query rows, and its gradient, in torch operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._dropout import dropout_factors
from ._tiling import Strip


@dataclass(frozen=True, slots=True)
class MaskDropout:
    """Which keys a query sees and which weights survive: all that acts on the softmax but not on the scores."""

    shape: tuple[int, int, int, int]  # (B, H, Q, K)
    attn_mask: Tensor | None
    is_causal: bool
    dropout_p: float
    seed: int

    def mask(self, strip: Strip) -> Tensor | None:
        """The mask of a strip, (B, H, rows, width) by broadcasting."""
        if self.attn_mask is None:
            return None
        return self.attn_mask.expand(self.shape)[:, :, strip.rows, : strip.width]

    def dropout_factors(self, strip: Strip, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Dropout factors of a strip (B * H, rows, width), or None without dropout."""
        if self.dropout_p == 0.0:
            return None
        batch, heads, queries, _ = self.shape
        shape = torch.Size((batch, heads, strip.stop - strip.start, strip.width))
        return dropout_factors(self.seed, self.dropout_p, shape, strip.start, queries, device).to(dtype).flatten(0, 1)


def mask_future(hidden: Tensor, strip: Strip) -> None:
    """Write -inf over the scores (B * H, rows, width) of later keys in a causal strip; nothing ever reads them."""
    rows = strip.stop - strip.start
    future = torch.ones(rows, rows, dtype=torch.bool, device=hidden.device).triu(1)
    hidden[:, :, strip.start :].masked_fill_(future, float("-inf"))


def softmax_strip(hidden: Tensor, strip: Strip, mask_dropout: MaskDropout) -> Tensor:
    """Softmax of a strip (B * H, rows, width); zeros in a row that sees no key. The scores stay as they are."""
    mask = mask_dropout.mask(strip)
    if mask is None:
        return torch.softmax(hidden, dim=-1)
    scores = hidden.view(*mask_dropout.shape[:2], *hidden.shape[1:])
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    fully_masked = scores.amax(dim=-1, keepdim=True) == float("-inf")
    weights = torch.softmax(scores, dim=-1).masked_fill_(fully_masked, 0.0)
    return weights.to(hidden.dtype).flatten(0, 1)


def add_mask_gradient(total: Tensor, gradient: Tensor, strip: Strip, mask_dropout: MaskDropout) -> None:
    """Add a strip's gradient (B * H, rows, width) to that of the mask, summed where the mask is broadcast."""
    gradient = gradient.view(*mask_dropout.shape[:2], *gradient.shape[1:])
    total = total.view((1,) * (4 - total.dim()) + tuple(total.shape))
    part = total if total.shape[2] == 1 else total[:, :, strip.rows]
    part = part if total.shape[3] == 1 else part[..., : strip.width]
    part += gradient.sum_to_size(part.shape)


def refuse_second_order() -> None:
    """Raise in a backward pass that is itself to be differentiated: tiles would leave its terms out in silence."""
    if torch.is_grad_enabled():
        raise RuntimeError("gradients of gradients (create_graph=True) need backend='reference'.")
