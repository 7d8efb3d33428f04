"""Private names of torch, transformers and accelerate that the library uses, where there is no public way.

Each has a reason and a check on an object of the installed version. A new version of a package that lacks one of them
fails here, with the name, and not in a user's training.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
import transformers as hf
from accelerate import PartialState
from torch import nn

CONFIG = {"n_layer": 1, "n_embd": 4, "n_head": 1, "vocab_size": 8, "n_positions": 4}


def gpt2() -> hf.GPT2LMHeadModel:
    return hf.GPT2LMHeadModel(hf.GPT2Config(**CONFIG, bos_token_id=None, eos_token_id=None))


def tensor_counts_changes() -> bool:
    tensor = torch.zeros(2)
    before = tensor._version
    tensor.add_(1)
    return tensor._version > before


def hooks_are_in(name: str) -> bool:
    """Whether a hook of a module is in its dictionary `name`, under the key of its handle."""
    module = nn.Linear(1, 1)
    register = module.register_forward_pre_hook if "_pre_" in name else module.register_forward_hook
    return register(print, with_kwargs=True).id in getattr(module, name)


def checkpointing_is_a_partial() -> bool:
    model = gpt2()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.transformer.h[0]._gradient_checkpointing_func.keywords["use_reentrant"] is False


def implementation_is_kept() -> bool:
    config = gpt2().config
    config._attn_implementation_internal = "eager"
    return config._attn_implementation == "eager"


def interpreter_prepares_a_language() -> bool:
    if find_spec("triton") is None:
        return True  # no interpreter, no repair of it
    from triton.runtime import interpreter

    return callable(interpreter._patch_lang)


PRIVATE = {  # name -> why it is used, and whether it does here what is expected of it
    "_patch_lang": ("repairs of Triton's interpreter, for tests", interpreter_prepares_a_language),
    "_version": ("a tensor that was changed in place is noticed", tensor_counts_changes),
    "_base": ("a view is told from its parameter", lambda: (whole := torch.zeros(2))[:1]._base is whole),
    "_forward_hooks": ("hooks are found and reordered", lambda: hooks_are_in("_forward_hooks")),
    "_forward_pre_hooks": ("hooks are found and reordered", lambda: hooks_are_in("_forward_pre_hooks")),
    "_forward_hooks_with_kwargs": ("the same", lambda: hooks_are_in("_forward_hooks_with_kwargs")),
    "_forward_pre_hooks_with_kwargs": ("the same", lambda: hooks_are_in("_forward_pre_hooks_with_kwargs")),
    "_attn_implementation": ("which attention a model runs", lambda: gpt2().config._attn_implementation == "sdpa"),
    "_attn_implementation_internal": ("set without a check of its name", implementation_is_kept),
    "_can_set_attn_implementation": ("asked before it is set", lambda: gpt2()._can_set_attn_implementation()),
    "_gradient_checkpointing_func": ("reentrant checkpointing is refused", checkpointing_is_a_partial),
    "_load_from_checkpoint": ("weights of a finished run", lambda: callable(hf.Trainer._load_from_checkpoint)),
    "_prepare_inputs": ("images are augmented on their device", lambda: callable(hf.Trainer._prepare_inputs)),
    "_shared_state": ("FSDP on CPUs", lambda: "distributed_type" in PartialState(cpu=True)._shared_state),
    "torch._C._distributed_c10d": (
        "stores for a restarted process group",
        lambda: torch.distributed.TCPStore is torch._C._distributed_c10d.TCPStore,
    ),
}
