"""HiddenState: what one attention layer hands to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

Engine = Literal["cpp", "triton", "torch"]  # what runs the arithmetic of a layer


class HiddenState(ABC):
    """The hidden state H_n of one forward pass after layer n; returned by `hopfield_attention`.

    Each backend stores it in its own way, behind one interface. It is an explicit value: nothing about a forward pass
    is kept anywhere else.

    >>> import torch, uncollapse as uc
    >>> q = k = v = torch.randn(1, 2, 5, 4)
    >>> out, state = uc.hopfield_attention(q, k, v)
    >>> state.layer, state.shape, state.backend
    (1, (1, 2, 5, 5), 'carried')
    """

    backend: ClassVar[str]

    def __init__(
        self,
        layer: int,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype,
        device: torch.device,
        engine: Engine = "torch",
    ) -> None:
        self.layer = layer  # n: how many layers this state has gone through
        self.shape = shape  # (B, H, Q, K)
        self.dtype = dtype  # in which the scores are kept: at least float32, or float16 if asked for
        self.device = device
        self._engine: Engine = engine

    @property
    def engine(self) -> Engine:
        """What ran layer n: "cpp" or "triton" for compiled tiles, "torch" for torch operations."""
        return self._engine

    @abstractmethod
    def scores(self) -> Tensor:
        """H_n, scaled and unmasked: (B, H, Q, K)."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows start .. stop of H_n: (B, H, stop - start, K)."""
        return self.scores()[:, :, start:stop]

    @abstractmethod
    def clone(self) -> HiddenState:
        """An independent copy, which stays usable whatever happens to this state."""

    def __repr__(self) -> str:
        return (
            f"HiddenState(layer={self.layer}, shape={self.shape}, dtype={self.dtype}, "
            f"backend={self.backend!r}, engine={self.engine!r})"
        )


def score_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scores are carried: at least float32."""
    return torch.promote_types(dtype, torch.float32)
