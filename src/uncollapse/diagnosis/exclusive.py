"""A model that is being diagnosed belongs to one thread: it is in evaluation mode, and its layers are counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_STARTING = threading.Lock()  # two threads that begin at once would not see each other


class _Guard:
    """A pre-hook on every module of the model: refuses calls from other threads while the diagnosis runs."""

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.active = True

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self.active and threading.get_ident() != self.owner:
            raise RuntimeError(
                "the model is being diagnosed in another thread, where it is in evaluation mode; wait until "
                "uncollapse.diagnose has returned, or diagnose a copy of the model."
            )


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """Keep other threads from running the model, from diagnosing it, and from changing its weights unnoticed."""
    guard = _Guard()
    with _STARTING:
        if any(isinstance(hook, _Guard) for m in model.modules() for hook in m._forward_pre_hooks.values()):
            raise RuntimeError(
                f"this {type(model).__name__} is being diagnosed already; wait until that diagnosis has returned."
            )
        handles = [module.register_forward_pre_hook(guard, prepend=True) for module in model.modules()]
    versions = [(weight, weight._version) for weight in model.parameters() if not weight.is_inference()]
    try:
        yield
        if any(weight._version != version for weight, version in versions):  # counts the changes in place
            raise RuntimeError(
                "the weights changed while the model was being diagnosed, so the numbers belong to no one model; "
                "diagnose between two updates, or diagnose a copy of the model."
            )
    finally:
        guard.active = False  # at once, since the hooks go one after the other
        for handle in handles:
            handle.remove()
