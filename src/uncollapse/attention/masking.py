"""What a query may see: masks as attention functions take them, read a tile at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HIDING = -1e4  # an added mask at or below this hides a key: exp(-1e4) is 0 in every dtype; -1e4 and -1e9 are in use


@dataclass
class Masking:
    """What a query may see: `visible` and `bias` broadcast to (B, H, Q, K); `real` (B, Q) is False at padding."""

    visible: Tensor | None = None
    bias: Tensor | None = None
    is_causal: bool = False
    real: Tensor | None = None

    @classmethod
    def of(cls, attn_mask: Tensor | None, is_causal: bool, real: Tensor | None) -> Masking:
        """From a mask as attention functions take it: bool, or float to be added to the scores."""
        if attn_mask is None or attn_mask.dtype == torch.bool:
            return cls(visible=attn_mask, is_causal=is_causal, real=real)
        hidden = attn_mask <= HIDING
        added = attn_mask.masked_fill(hidden, 0.0)
        return cls(~hidden, added if bool(added.any()) else None, is_causal, real)

    def visible_keys(self, start: int, stop: int, keys: int, device: torch.device) -> Tensor:
        """How many keys rows start .. stop see, broadcastable to (B, H, rows)."""
        if self.is_causal:
            return torch.arange(start + 1, stop + 1, device=device).float()
        if self.visible is None:
            return torch.tensor(float(keys), device=device)
        seen = rows_of(self.visible, start, stop, keys)
        return seen.expand(*seen.shape[:-1], keys).sum(dim=-1).float()

    def hide(self, scores: Tensor, start: int, value: float) -> None:
        """Write `value` over the scores (B, H, rows, keys) of keys that are not seen; rows count from `start`."""
        rows, keys = scores.shape[-2:]
        if self.is_causal:  # all before the diagonal is seen, and keys end with the last row
            later = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu(1)
            scores[..., start:].masked_fill_(later, value)
        elif self.visible is not None:
            scores.masked_fill_(~rows_of(self.visible, start, start + rows, keys), value)

    def first_visible(self, start: int, stop: int, keys: int, device: torch.device) -> Tensor:
        """The first key that rows start .. stop see, broadcastable to (B, H, rows)."""
        if self.is_causal or self.visible is None:
            return torch.zeros((), dtype=torch.long, device=device)
        seen = rows_of(self.visible, start, stop, keys)
        return seen.expand(*seen.shape[:-1], keys).int().argmax(dim=-1)

    def runs(self, queries: int, keys: int) -> Tensor | None:
        """The first key that each row sees and the one behind the last, (B or 1, H or 1, Q, 2); None if one sees holes.

        Causal masks, windows and padding have no holes. A row of padding sees nothing.

        >>> Masking(is_causal=True).runs(3, 3).tolist()
        [[[[0, 1], [0, 2], [0, 3]]]]
        """
        if self.is_causal or self.visible is None:
            last = torch.arange(1, queries + 1).clamp(max=keys) if self.is_causal else torch.full((queries,), keys)
            runs = torch.stack([torch.zeros_like(last), last], dim=-1)[None, None]
        else:
            seen = rows_of(self.visible, 0, queries, keys)
            seen = seen.expand(*seen.shape[:-2], queries, keys)
            begins = (seen[..., 1:] & ~seen[..., :-1]).sum(dim=-1) + seen[..., 0]
            if bool((begins > 1).any()):
                return None
            first = seen.view(torch.uint8).argmax(dim=-1)
            runs = torch.stack([first, first + seen.sum(dim=-1)], dim=-1)
        if self.real is not None:
            runs = runs.where(self.real[:, None, :, None].to(runs.device), 0)
        return runs.int()

    def part(self, first: int, last: int) -> Masking:
        """The same for entries first .. last of the batch."""

        def of(mask: Tensor | None) -> Tensor | None:
            return mask[first:last] if mask is not None and mask.dim() == 4 and len(mask) > 1 else mask

        return Masking(
            of(self.visible), of(self.bias), self.is_causal, None if self.real is None else self.real[first:last]
        )

    def with_sink(self, queries: int, keys: int, device: torch.device) -> Masking:
        """The same with one more key behind the others, which every row sees and to which no bias is added."""
        visible = self.visible
        if self.is_causal:
            visible = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device).tril()
        if visible is not None:
            visible = torch.nn.functional.pad(visible.expand(*visible.shape[:-1], keys), (0, 1), value=True)
        bias = self.bias
        if bias is not None:
            bias = torch.nn.functional.pad(bias.expand(*bias.shape[:-1], keys), (0, 1))
        return Masking(visible, bias, False, self.real)

    def tile(self, start: int, stop: int, keys: int, device: torch.device) -> Tensor | None:
        """Which keys rows start .. stop see, broadcastable to (B, H, rows, keys); None: all."""
        if self.is_causal:
            return torch.ones(stop - start, keys, dtype=torch.bool, device=device).tril(start)
        return None if self.visible is None else rows_of(self.visible, start, stop, keys)


def rows_of(mask: Tensor, start: int, stop: int, keys: int) -> Tensor:
    """Rows and keys of a mask that may have size 1 (or nothing) where it broadcasts."""
    mask = mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))
    mask = mask if mask.shape[-2] == 1 else mask[..., start:stop, :]
    return mask if mask.shape[-1] == 1 else mask[..., :keys]
