"""Which engine runs the tiles of a backend. A new engine is a row of `ENGINES` and a branch in the `_*_tiles.py` files.

An engine names itself in the settings of a layer (`settings.engine`), travels through the custom operators as a string,
and shows in `state.engine`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from . import _native as native
from ._gpu import availability as gpu
from .state import Engine

Serves = Callable[[Tensor, Tensor | None, Tensor | None], bool]  # (q, attn_mask, v) -> can it run a layer on them?

ENGINES: tuple[tuple[Engine, Serves], ...] = (  # asked in this order; torch serves the rest
    ("triton", gpu.serves),
    ("cpp", native.serves),
)


def tile_engine(q: Tensor, attn_mask: Tensor | None = None, v: Tensor | None = None) -> Engine:
    """The engine that runs a layer on these tensors: the first that serves them, else torch operations.

    The first call on a CPU tensor loads the C++ tiles, and compiles them unless a cached build exists.

    >>> import torch
    >>> tile_engine(torch.zeros(1, 1, 1, 1, dtype=torch.float64))
    'torch'
    """
    return next((name for name, serves in ENGINES if serves(q, attn_mask, v)), "torch")
