"""Private names of torch, transformers and accelerate that the library uses, where there is no public way.

Each has a reason and a check on an object of the installed version. A new version of a package that lacks one of them
fails here, with the name, and not in a user's training.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
import transformers as hf
from accelerate import PartialState, cpu_offload
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.utils.checkpoint import checkpoint

from uncollapse.attention._compiling import constant_result
from uncollapse.models import _torch_internals as internals

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


def always_called_hooks_are_listed() -> bool:
    module = nn.Linear(1, 1)
    return module.register_forward_hook(print, always_call=True).id in module._forward_hooks_always_called


def offloading_leaves_a_hook() -> bool:
    module = cpu_offload(nn.Sequential(nn.Linear(1, 1)), torch.device("cpu"))
    return module[0]._hf_hook.execution_device == torch.device("cpu")


def region_is_seen() -> bool:
    seen = []

    def region(x: torch.Tensor) -> torch.Tensor:
        seen.append(internals.current_region())
        return x * x

    checkpoint(region, torch.ones(1, requires_grad=True), use_reentrant=False).sum().backward()
    return [found is not None and found.again for found in seen] == [False, True] and seen[0] is not None


def constants_are_marked_so() -> bool:
    ours, theirs = constant_result(lambda: 1), torch.compiler.assume_constant_result(lambda: 1)
    return vars(ours) == vars(theirs) != {}


def transform_is_seen() -> bool:
    seen = []
    torch.func.vmap(lambda x: seen.append(internals.in_transform()) or x)(torch.ones(2))
    return seen == [True] and not internals.in_transform()


def state_hooks_are_in(name: str) -> bool:
    module = nn.Linear(1, 1)
    register = module.register_load_state_dict_pre_hook if "_pre_" in name else module.register_state_dict_post_hook
    return register(lambda *_: None).id in getattr(module, name)


def compiling_in_place_leaves_a_mark() -> bool:
    module = nn.Linear(1, 1)
    before = module._compiled_call_impl
    module.compile(backend="eager")
    return before is None and module._compiled_call_impl is not None


def registered_functions_are_in_a_mapping() -> bool:
    hf.AttentionInterface.register("private-name", print)
    return hf.AttentionInterface._global_mapping.pop("private-name") is print


PRIVATE = {  # name -> why it is used, and whether it does here what is expected of it
    "_patch_lang": ("repairs of Triton's interpreter, for tests", interpreter_prepares_a_language),
    "_version": ("a tensor that was changed in place is noticed", tensor_counts_changes),
    "_base": ("a view is told from its parameter", lambda: (whole := torch.zeros(2))[:1]._base is whole),
    "_forward_hooks": ("hooks are found and reordered", lambda: hooks_are_in("_forward_hooks")),
    "_forward_hooks_always_called": ("hooks are removed", always_called_hooks_are_listed),
    "_hf_hook": ("weights that accelerate keeps elsewhere are found", offloading_leaves_a_hook),
    "_C": ("function modes are switched off", lambda: callable(torch._C.DisableTorchFunction)),
    "_autograd": ("a checkpointed region is noticed", region_is_seen),
    "_top_saved_tensors_default_hooks": ("a checkpointed region is noticed", region_is_seen),
    "_torchdynamo_orig_callable": ("torch wraps the hook of a checkpointed region in it", region_is_seen),
    "_current_graph_task_id": ("a recomputation is told from a forward pass", lambda: not internals.in_backward()),
    "_dynamo_marked_constant": ("torch.compile is told of constants, without its import", constants_are_marked_so),
    "_functorch": ("vmap is refused", transform_is_seen),
    "_forward_pre_hooks": ("hooks are found and reordered", lambda: hooks_are_in("_forward_pre_hooks")),
    "_forward_hooks_with_kwargs": ("the same", lambda: hooks_are_in("_forward_hooks_with_kwargs")),
    "_forward_pre_hooks_with_kwargs": ("the same", lambda: hooks_are_in("_forward_pre_hooks_with_kwargs")),
    "_parameters": ("weights change without the type of their module", lambda: "weight" in nn.Linear(1, 1)._parameters),
    "_state_dict_hooks": ("hooks are removed", lambda: state_hooks_are_in("_state_dict_hooks")),
    "_load_state_dict_pre_hooks": ("the same", lambda: state_hooks_are_in("_load_state_dict_pre_hooks")),
    "_compiled_call_impl": ("a module that was compiled in place is noticed", compiling_in_place_leaves_a_mark),
    "_global_mapping": ("an attention function is taken back", registered_functions_are_in_a_mapping),
    "_get_default_store": ("ranks wait for each other with a deadline", lambda: callable(c10d._get_default_store)),
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
