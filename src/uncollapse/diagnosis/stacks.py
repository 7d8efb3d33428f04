"""The stacks of a transformers model: every list of blocks that holds attention, by its path in the model."""

from __future__ import annotations

import re

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from uncollapse.models.families import blocks_of, family_of

_ATTENTION = re.compile("attention|attn", re.IGNORECASE)  # in the names of classes; nn.MultiheadAttention has it too


def find_stacks(model: PreTrainedModel) -> dict[str, list[nn.Module]]:
    """Lists of blocks by name: an encoder and a decoder, two towers, the stages of one tower.

    A list counts if its blocks are of one type, or all marked as blocks by transformers, and some of them hold
    attention; of lists inside each other the innermost counts, so that experts and stages are not taken for blocks.
    """
    family = family_of(model)
    if family is not None:
        return {family.blocks: blocks_of(model, family)}
    lists = {
        name: list(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) and _are_blocks(list(module))
    }
    inner = {
        name: blocks
        for name, blocks in lists.items()
        if not any(other != name and other.startswith(f"{name}.") for other in lists)
    }
    if not inner:
        raise ValueError(f"no attention was found in {type(model).__name__}: it has no list of blocks.")
    prefix = f"{model.base_model_prefix}."
    return {name.removeprefix(prefix): blocks for name, blocks in inner.items()}


def attention_modules(block: nn.Module) -> list[nn.Module]:
    """The modules of a block that are attention by the name of their class."""
    return [module for module in block.modules() if module is not block and _ATTENTION.search(type(module).__name__)]


def _are_blocks(modules: list[nn.Module]) -> bool:
    alike = len({type(module) for module in modules}) == 1
    marked = all(isinstance(module, GradientCheckpointingLayer) for module in modules)
    return (alike or marked) and any(attention_modules(module) for module in modules)
