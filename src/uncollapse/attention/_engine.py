"""Which engine runs the tiles of `carried` and `stacked`."""

from __future__ import annotations

from torch import Tensor

from . import _native as native
from .state import Engine


def tile_engine(q: Tensor, attn_mask: Tensor | None = None) -> Engine:
    """The engine that runs a layer on these tensors: "cpp" where the compiled tiles support them, else "torch".

    The first call on a CPU tensor loads the C++ tiles, and compiles them unless a cached build exists.

    >>> import torch
    >>> tile_engine(torch.zeros(1, 1, 1, 1, dtype=torch.float64))
    'torch'
    """
    return "cpp" if native.serves(q, attn_mask) else "torch"
