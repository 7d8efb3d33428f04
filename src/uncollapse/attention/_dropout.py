"""Which attention weights are dropped: a hash of a seed and the weight's position, so that no mask is stored.

Forward and backward, torch and C++, whole matrices and tiles therefore drop the same weights. The seed comes from
torch's default generator.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_STEP = 0x9E3779B9  # 2^32 / golden ratio: spreads neighbouring columns


def draw_seed(dropout_p: float) -> int:
    """A seed from torch's default generator; 0, without drawing one, if nothing is dropped."""
    return seed_value(draw_seed_tensor(dropout_p))


def draw_seed_tensor(dropout_p: float) -> Tensor | None:
    """The same seed as a tensor, which torch.compile can trace."""
    return torch.randint(2**62, ()) if dropout_p > 0.0 else None


def seed_value(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)


def dropout_factors(
    seed: int, dropout_p: float, shape: torch.Size, first: int, total: int, device: torch.device
) -> Tensor:
    """Factors (B, H, rows, keys), 0 or 1/(1 - p), of the query rows first, first + 1, ... out of `total`."""
    batch, heads, rows, keys = shape
    head = torch.arange(batch * heads, device=device).view(batch, heads, 1, 1)
    row = head * total + torch.arange(first, first + rows, device=device).view(-1, 1)
    row = _mix((row & _WORD) ^ (seed & _WORD))
    row = _mix(row ^ (seed >> 32))
    column = (torch.arange(keys, device=device) * _STEP) & _WORD
    bits = _mix(column ^ row)  # uniform on 0 .. 2^32 - 1
    return (bits >= round(dropout_p * 2**32)) * survivor_factor(dropout_p)


def survivor_factor(dropout_p: float) -> float:
    """The factor 1/(1 - p) on a weight that is not dropped, which preserves the mean."""
    return 0.0 if dropout_p == 1.0 else 1.0 / (1.0 - dropout_p)


def _mix(x: Tensor) -> Tensor:
    """A 32-bit hash of each entry (multiplications wrap, their low 32 bits are exact)."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)
