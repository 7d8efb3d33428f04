"""Gradient checkpointing: what a layer starts from is kept until its region has been run again."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Hashable
from typing import Any, TypeVar, cast

from torch import Tensor

from ._torch_internals import Region

Kept = TypeVar("Kept")

_KEPT: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()


def keep(region: Region, key: Hashable, state: object) -> None:
    """Keep the state that a layer starts from until the region has been run again."""
    # without its graph, which would hold the region's record, and so itself, for ever
    _KEPT.setdefault(region.frame, {})[key] = detached(state)


def kept(region: Region | None, key: Hashable) -> tuple[bool, Any]:
    """Whether a state was kept for this layer of the region, and the state, which may be None."""
    states = {} if region is None else _KEPT.get(region.frame, {})
    return key in states, states.get(key)


def detached(value: Kept) -> Kept:
    """The same state without its graph; what needed a gradient still says so, as the recomputation expects."""
    if isinstance(value, Tensor):
        return cast(Kept, value.detach().requires_grad_(value.requires_grad))
    if isinstance(value, tuple):
        parts = [detached(part) for part in value]
        return cast(Kept, type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts))
    if isinstance(value, list):
        return cast(Kept, [detached(part) for part in value])
    if type(value).__module__.startswith("uncollapse.") and hasattr(value, "__dict__"):
        twin = copy.copy(value)
        twin.__dict__.update({name: detached(part) for name, part in vars(value).items() if _holds_tensors(part)})
        return twin
    return value


def _holds_tensors(value: object) -> bool:
    return isinstance(value, Tensor | tuple | list)
