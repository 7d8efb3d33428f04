"""Weights that accelerate keeps on disk or in another memory, and brings in while a module runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


def execution_device(model: nn.Module) -> torch.device | None:
    """The device on which an offloaded model runs, None where its weights are at hand."""
    if all(parameter.device.type != "meta" for parameter in model.parameters()):
        return None
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    raise ValueError(
        f"some weights of this {type(model).__name__} are on the meta device, so they have no values, and accelerate "
        "has no hook that would load them; load the model with its weights."
    )


@contextmanager
def at_hand(*modules: nn.Module) -> Iterator[None]:
    """Bring in the weights of these modules for a moment, if they are elsewhere."""
    away = [m for m in modules if any(p.device.type == "meta" for p in m.parameters(recurse=False))]
    with ExitStack() as stack:
        if away:
            from accelerate.utils import align_module_device

            for module in dict.fromkeys(away):
                stack.enter_context(align_module_device(module))
        yield
