"""Gradient checkpointing, seen from inside a layer: which region is running, and is this its recomputation?

torch has no public way to ask. What is used of its internals stands here and nowhere else; where a version of torch
lacks it, checkpointing is refused with a sentence, and everything else goes on working.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

TESTED = ("2.13",)  # versions of torch with which checkpointing of plain modules was tested
Kept = TypeVar("Kept")


class Region(NamedTuple):
    """A region of non-reentrant checkpointing that is under way."""

    frame: Any  # torch's own record of the region; lives as long as its graph
    again: bool  # backward has come to the region and runs it a second time


_KEPT: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()


def current_region() -> Region | None:
    """The innermost checkpointed region under way, None outside of any."""
    try:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    except AttributeError:
        return None  # the layer will find itself without the one before it, in backward
    if hooks is None:
        return None
    pack = getattr(hooks[0], "_torchdynamo_orig_callable", hooks[0])
    if getattr(pack, "__module__", "") != torch.utils.checkpoint.__name__:
        return None  # saved tensors are offloaded or compressed; no region begins here
    cells = dict(zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True))
    if "target_frame_ref" in cells:
        return Region(cells["target_frame_ref"].cell_contents(), True)
    if "frame" in cells:
        return Region(cells["frame"].cell_contents, False)
    raise ValueError(untested())


def in_backward() -> bool:
    """Whether a backward pass is running in this thread: then a forward is a recomputation."""
    try:
        return torch._C._current_graph_task_id() != -1
    except AttributeError:
        return False


def in_transform() -> bool:
    """Whether this runs inside torch.func.vmap, grad or another transform."""
    try:
        return torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return False


def untested() -> str:
    """The sentence for a version of torch whose checkpointing is not known."""
    return (
        f"gradient checkpointing of this model was tested with torch {', '.join(TESTED)}; torch {torch.__version__} "
        "keeps its records in another way, so switch checkpointing off, or install a version that was tested."
    )


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
