"""The shape of a model's attention, from its name or from the config in a folder."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from .stack_shape import StackShape

KNOWN = {  # name -> layers, query heads, key/value heads, head size, causal
    "gpt2": (12, 12, 12, 64, True),
    "gpt2-medium": (24, 16, 16, 64, True),
    "gpt2-large": (36, 20, 20, 64, True),
    "gpt2-xl": (48, 25, 25, 64, True),
    "llama-7b": (32, 32, 32, 128, True),
    "llama-3-8b": (32, 32, 8, 128, True),
    "bert-base": (12, 12, 12, 64, False),
    "vit-tiny": (12, 3, 3, 64, False),
    "vit-small": (12, 6, 6, 64, False),
    "vit-base": (12, 12, 12, 64, False),
}


def model_shape(model: str, length: int, batch: int = 1) -> StackShape:
    """The shape of a model's attention layers for sequences of `length` tokens.

    >>> model_shape("gpt2", 1024).name
    '12 layers, B1 H12 T1024 D64, causal'
    """
    if length < 1 or batch < 1:
        raise ValueError(f"length and batch must be at least 1, got {length} and {batch}.")
    if model in KNOWN:
        layers, heads, groups, size, causal = KNOWN[model]
    elif (Path(model) / "config.json").is_file():
        layers, heads, groups, size, causal = _from_config(Path(model))
    else:
        near = difflib.get_close_matches(model, KNOWN, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join(KNOWN)}."
        raise ValueError(f"{model!r} is neither a folder with a config.json nor a known model; {hint}")
    return StackShape(length, layers, batch, heads, size, causal, groups)


def _from_config(folder: Path) -> tuple[int, int, int, int, bool]:
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    try:
        layers, heads, width = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
    except AttributeError as error:
        raise ValueError(
            f"the config in {folder} ({config.model_type}) has no {error.name}, which an estimate needs."
        ) from None
    groups = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or width // heads
    return layers, heads, groups, size, _is_causal(config)


def _is_causal(config: Any) -> bool:
    """Whether attention is causal: by the name of the architecture if there is one, else by the model's tasks."""
    if config.architectures:
        return any(part in config.architectures[0] for part in ("CausalLM", "LMHead"))
    from transformers.models.auto import modeling_auto as tasks

    return (
        config.model_type in tasks.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and config.model_type not in tasks.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )
