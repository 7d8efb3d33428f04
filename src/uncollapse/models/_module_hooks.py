"""What the hooks of both routes need: to be removed by the function they call, and to know their thread."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

MARK = "_hopfield_layer"  # attribute that convert puts on each attention module of transformers


def remove_hook(module: nn.Module, hook: Any) -> None:
    """Remove a hook by the function it calls: unlike a handle, that also works in a copy of the model."""
    for hooks, *flags in (
        (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
    ):
        for key in [key for key, function in hooks.items() if function is hook]:
            del hooks[key]
            for flag in flags:
                flag.pop(key, None)


def running_thread() -> int:
    """The thread that runs the model, of which there may be several; a compiled graph has one."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()
