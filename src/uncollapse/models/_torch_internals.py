"""What is used of torch's internals, because torch has no public way to ask: here and nowhere else.

Where a version of torch lacks what checkpointing needs, checkpointing is refused with a sentence, and everything else
goes on working.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

TESTED = ("2.13",)  # versions of torch with which plain modules were tested


class Region(NamedTuple):
    """A region of non-reentrant checkpointing that is under way."""

    frame: Any  # torch's own record of the region; lives as long as its graph
    again: bool  # backward has come to the region and runs it a second time


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


def without_modes() -> AbstractContextManager[None]:
    """While it is open, no function mode and no subclass of tensors sees what is called."""
    try:
        return torch._C.DisableTorchFunction()
    except AttributeError:
        raise ValueError(
            f"models outside of transformers were tested with torch {', '.join(TESTED)}; torch {torch.__version__} "
            "cannot switch function modes off, so install a version that was tested."
        ) from None


def untested() -> str:
    """The sentence for a version of torch whose checkpointing is not known."""
    return (
        f"gradient checkpointing of this model was tested with torch {', '.join(TESTED)}; torch {torch.__version__} "
        "keeps its records in another way, so switch checkpointing off, or install a version that was tested."
    )
