"""Stochastic depth for a ViT: in training each branch of each block is dropped for whole samples at random.

Hugging Face's ViT and DeiT have none. A forward hook sits on the attention module and one on the MLP: their outputs
are the two branches, before the block adds them to the residual stream (the block's own dropout in between commutes
with dropping). W_O is inside the attention module, so in a converted model the hook sees alpha y + (1 - alpha) W_O(...)
whichever hook was added first: a branch is dropped whole, visible skip included, and the block's residual stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from uncollapse.models.convert import transformers_model
from uncollapse.models.families import blocks_of, family_of

RATE = "_drop_path_rate"  # attribute of a module that carries the hook; plain, so no key in the state dict
MODEL_TYPES = ("vit", "deit")


def add_drop_path(model: nn.Module, rate: float) -> None:
    """Drop the branches of block n of N with probability rate (n - 1) / (N - 1), in training mode only.

    A second call replaces the rate. A branch that is kept is divided by its probability of being kept.

    >>> from transformers import ViTConfig, ViTModel
    >>> size = dict(hidden_size=8, intermediate_size=8, num_attention_heads=2, image_size=4, patch_size=2)
    >>> model = ViTModel(ViTConfig(num_hidden_layers=3, **size))
    >>> add_drop_path(model, 0.2)
    >>> [block.mlp._drop_path_rate for block in model.layers]
    [0.0, 0.1, 0.2]
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"the drop path rate must be at least 0 and below 1, got {rate}.")
    inner = transformers_model(model)
    branches = _branches(inner)
    remove_drop_path(inner)
    for number, block in enumerate(branches):
        for branch in block:
            setattr(branch, RATE, rate * number / max(1, len(branches) - 1))
            branch.register_forward_hook(_drop)


def remove_drop_path(model: nn.Module) -> None:
    """Undo `add_drop_path`, also in a copy of the model; a model without it stays as it is."""
    for module in model.modules():
        if RATE in module.__dict__:
            for key in [key for key, hook in module._forward_hooks.items() if hook is _drop]:
                del module._forward_hooks[key]
            delattr(module, RATE)


def _branches(model: PreTrainedModel) -> list[tuple[nn.Module, nn.Module]]:
    """Attention and MLP of each block, in the order in which they run."""
    family = family_of(model)
    kind = model.config.model_type
    if family is None or kind not in MODEL_TYPES:
        raise ValueError(f"drop path is made for the model types {', '.join(MODEL_TYPES)}, got {kind!r}.")
    return [(block.get_submodule(family.attention), block.get_submodule("mlp")) for block in blocks_of(model, family)]


def _drop(branch: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """The forward hook: the output of the branch, or the first of its outputs, with some samples set to zero."""
    rate: float = getattr(branch, RATE)
    if not branch.training or rate == 0.0:
        return None
    if isinstance(output, tuple):
        return (_drop_samples(output[0], rate), *output[1:])
    return _drop_samples(output, rate)


def _drop_samples(x: Tensor, rate: float) -> Tensor:
    keep = 1.0 - rate
    mask = torch.empty(x.shape[0], *[1] * (x.dim() - 1), dtype=x.dtype, device=x.device).bernoulli_(keep)
    return x * (mask / keep)
