"""The values of layer 1, which later layers of its stack mix in; also where checkpointing runs a layer again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _recomputation as recomputation
from . import _torch_internals as internals
from ._module_hooks import running_thread


class FirstValues:
    """Those of the stacks of one model, by thread and stack, until the last layer has had them."""

    def __init__(self) -> None:
        self.under_way: dict[tuple[int, int], Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"under_way": {}}  # a running pass does not belong into a copy

    def of(self, place: tuple[int, int, int], name: str, value: Tensor) -> Tensor:
        """The values (B, G, K, Dv) of layer 1; `place` is the stack, the layer in it from 1, and its depth."""
        stack, layer, depth = place
        again = _runs_again()
        if layer == 1:
            if not again:
                self.under_way[running_thread(), stack] = value
            return value
        key = (id(self), stack, layer)
        found = _kept(key, name) if again else self._now(stack, name, last=layer == depth)
        if not again and not torch.compiler.is_compiling():
            region = internals.current_region()
            if region is not None and torch.is_grad_enabled():
                recomputation.keep(region, key, found)
        if found.shape[:3] != value.shape[:3]:
            raise ValueError(
                f"{name} has values of shape {tuple(value.shape)} and layer 1 {tuple(found.shape)}; mixing in the "
                "values of layer 1 needs the same heads and tokens in every layer."
            )
        return found

    def _now(self, stack: int, name: str, last: bool) -> Tensor:
        place = (running_thread(), stack)
        if place not in self.under_way:
            raise ValueError(f"{name} ran without layer 1, whose values it mixes in; call the whole model.")
        return self.under_way.pop(place) if last else self.under_way[place]


def _runs_again() -> bool:
    """Whether this is a recomputation."""
    if torch.compiler.is_compiling():
        return False
    region = internals.current_region()
    return internals.in_backward() or (region is not None and region.again)


def _kept(key: tuple[int, int, int], name: str) -> Tensor:
    known, found = recomputation.kept(internals.current_region(), key)
    if not known:
        raise ValueError(
            f"{name}: mixing in the values of layer 1 under reentrant or nested gradient checkpointing would give "
            "wrong gradients; call checkpoint(..., use_reentrant=False), once around each block."
        )
    assert isinstance(found, Tensor)
    return found
