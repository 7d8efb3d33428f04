"""One table of model families: where a block, its attention, W_O and the query and key weights are.

Whatever reads weights or adds hooks looks here. To add a family, add a row: the key is the
`model_type` of its config, and the tests sweep over the rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from .offload import at_hand

WeightLayout = Literal[
    "linear",  # separate modules, weight (heads * D, M)
    "fused_conv1d",  # one Conv1D, weight (M, 3M): all queries, all keys, all values
    "fused_heads",  # one Linear, weight (3M, M): for each head its query, key, value
]


@dataclass(frozen=True)
class Family:
    """Paths of one family: `blocks` from the base model, the others from a block."""

    blocks: str  # the ModuleList of blocks
    attention: str  # the module that calls the attention function; its first argument is what enters the attention
    output: str  # W_O
    query: str  # the module with W_Q
    key: str  # the module with W_K; the same one where they are fused
    layout: WeightLayout = "linear"
    rotary: bool = False
    dropout: str = ""  # the config's probability of the dropout between W_O and the block's sum, if there is one
    plain_sum: bool = True  # nothing else lies between W_O and the block's sum


_LLAMA = Family("layers", "self_attn", "self_attn.o_proj", "self_attn.q_proj", "self_attn.k_proj", rotary=True)
_BERT = Family(
    "encoder.layer",
    "attention.self",
    "attention.output.dense",
    "attention.self.query",
    "attention.self.key",
    dropout="hidden_dropout_prob",
)
_VIT = Family(
    "layers",
    "attention",
    "attention.o_proj",
    "attention.q_proj",
    "attention.k_proj",
    dropout="hidden_dropout_prob",
)

FAMILIES: dict[str, Family] = {
    "gpt2": Family("h", "attn", "attn.c_proj", "attn.c_attn", "attn.c_attn", "fused_conv1d", dropout="resid_pdrop"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "phi": Family(
        "layers",
        "self_attn",
        "self_attn.dense",
        "self_attn.q_proj",
        "self_attn.k_proj",
        rotary=True,
        dropout="resid_pdrop",
    ),
    "gpt_neox": Family(
        "layers",
        "attention",
        "attention.dense",
        "attention.query_key_value",
        "attention.query_key_value",
        "fused_heads",
        rotary=True,
        dropout="hidden_dropout",
    ),
    "bert": _BERT,
    "roberta": _BERT,
    "distilbert": Family("transformer.layer", "attention", "attention.out_lin", "attention.q_lin", "attention.k_lin"),
    "vit": _VIT,
    "deit": _VIT,
    "dinov2": Family(
        "encoder.layer",
        "attention",
        "attention.o_proj",
        "attention.q_proj",
        "attention.k_proj",
        plain_sum=False,  # LayerScale and stochastic depth
    ),
}


@dataclass(frozen=True)
class LayerModules:
    """The modules of one attention layer, and their names in the model for messages."""

    name: str
    attention: nn.Module
    output_parent: nn.Module  # W_O is looked up each time: adapters may replace it
    output_name: str
    block: nn.Module | None  # whose first argument is the residual stream; None where it was not found

    @property
    def output(self) -> nn.Module:
        """W_O as it is now."""
        return self.output_parent.get_submodule(self.output_name)


def family_of(model: PreTrainedModel) -> Family | None:
    """The row of the table for this model, if there is one."""
    return FAMILIES.get(model.config.model_type)


def blocks_of(model: PreTrainedModel, family: Family) -> list[nn.Module]:
    """The blocks in the order in which they run; one that serves several layers stands there as often."""
    return list(cast(nn.ModuleList, model.base_model.get_submodule(family.blocks)))


def layers_of(model: PreTrainedModel, family: Family) -> Iterator[LayerModules]:
    """The attention layers in the order in which they run."""
    for index, block in enumerate(blocks_of(model, family)):
        parent, _, name = family.output.rpartition(".")
        yield LayerModules(
            name=f"{family.blocks}.{index}.{family.attention}",
            attention=block.get_submodule(family.attention),
            output_parent=block.get_submodule(parent),
            output_name=name,
            block=block,
        )


@dataclass(frozen=True)
class QueryKeyWeights:
    """W_Q (H, D, M) and W_K (G, D, M) of one layer, one matrix per head; biases (H, D) and (G, D), or None."""

    query: Tensor
    key: Tensor
    query_bias: Tensor | None
    key_bias: Tensor | None


def query_key_weights(model: PreTrainedModel) -> list[QueryKeyWeights]:
    """The query and key weights of every layer, as views of the model's own parameters.

    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> [tuple(weights.query.shape) for weights in query_key_weights(model)]
    [(2, 4, 8), (2, 4, 8)]
    """
    return list(each_query_key_weights(model))


def each_query_key_weights(model: PreTrainedModel, adapted: bool = False) -> Iterator[QueryKeyWeights]:
    """The same layer by layer: weights that are sharded or offloaded are brought in for one layer at a time.

    With `adapted`, what LoRA adds to a weight is part of it, without gradients; otherwise adapters are refused.
    """
    family = _known_family(model)
    for block in blocks_of(model, family):
        with at_hand(block.get_submodule(family.query), block.get_submodule(family.key)):
            yield _split(block, family, model.config.num_attention_heads, model.config.hidden_size, adapted)


def query_key_parameters(model: PreTrainedModel) -> list[tuple[nn.Parameter, ...]]:
    """The parameters that hold the query and key weights of every layer: two, or one where they are fused."""
    family = _known_family(model)
    paths = dict.fromkeys((family.query, family.key))
    return [tuple(_parameter(block, path) for path in paths) for block in blocks_of(model, family)]


def _parameter(block: nn.Module, path: str) -> nn.Parameter:
    weight = _plain(block.get_submodule(path), path).weight
    if not isinstance(weight, nn.Parameter):
        raise ValueError(f"the weight of {path} is computed from others (a parametrisation); remove that first.")
    return weight


def _known_family(model: PreTrainedModel) -> Family:
    family = family_of(model)
    if family is None:
        raise ValueError(
            f"the query and key weights of model type {model.config.model_type!r} are not known; "
            f"known are {', '.join(FAMILIES)}."
        )
    return family


def _plain(module: nn.Module, path: str) -> nn.Linear:
    """The module, if its weight is all there is to it."""
    if hasattr(module, "base_layer"):
        raise ValueError(f"{path} is wrapped by an adapter ({type(module).__name__}); merge the adapter first.")
    linear = cast(nn.Linear, module)
    if not linear.weight.is_floating_point():
        raise ValueError(f"the weight of {path} is stored as {linear.weight.dtype}; dequantise the model first.")
    if linear.weight.dim() != 2:
        raise ValueError(
            f"the weight of {path} is not whole here, as under FSDP1 or ZeRO-3: its shape is "
            f"{tuple(linear.weight.shape)}; shard with FSDP2 instead."
        )
    return linear


def _whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or gathered if FSDP2 has sharded it; a gradient goes back to each process's own shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def is_adapted(model: PreTrainedModel) -> bool:
    """Whether the modules with W_Q or W_K of a known family are wrapped by adapters."""
    family = _known_family(model)
    paths = (family.query, family.key)
    return any(hasattr(block.get_submodule(path), "base_layer") for block in blocks_of(model, family) for path in paths)


def _merged(module: nn.Module, path: str) -> nn.Linear:
    """A linear module with the weight that a LoRA module has in effect; other adapters are refused."""
    if not hasattr(module, "base_layer"):
        return _plain(module, path)
    base, delta = _plain(cast(nn.Module, module.base_layer), path), getattr(module, "get_delta_weight", None)
    if delta is None:
        raise ValueError(f"{path} is wrapped by an adapter ({type(module).__name__}), whose weight is not known.")
    merged = copy.copy(base)
    merged._parameters = dict(base._parameters)
    active = () if getattr(module, "merged", False) else cast(list[str], module.active_adapters)
    added = [delta(name).detach() for name in active if name in cast(nn.ModuleDict, module.lora_A)]
    merged._parameters["weight"] = cast(nn.Parameter, sum(added, start=_whole(base.weight).detach()))
    return merged


def _split(block: nn.Module, family: Family, heads: int, width: int, adapted: bool = False) -> QueryKeyWeights:
    read = _merged if adapted else _plain
    query, key = (read(block.get_submodule(path), path) for path in (family.query, family.key))
    weight, bias = _whole(query.weight), None if query.bias is None else _whole(query.bias)
    if family.layout == "linear":
        size = weight.shape[0] // heads
        key_bias = None if key.bias is None else _whole(key.bias).view(-1, size)
        return QueryKeyWeights(
            weight.view(-1, size, width),
            _whole(key.weight).view(-1, size, width),
            None if bias is None else bias.view(-1, size),
            key_bias,
        )
    size = width // heads
    if family.layout == "fused_conv1d":
        parts, part_bias = weight.T.view(3, heads, size, width), None if bias is None else bias.view(3, heads, size)
    else:
        parts = weight.view(heads, 3, size, width).transpose(0, 1)
        part_bias = None if bias is None else bias.view(heads, 3, size).transpose(0, 1)
    if part_bias is None:
        return QueryKeyWeights(parts[0], parts[1], None, None)
    return QueryKeyWeights(parts[0], parts[1], part_bias[0], part_bias[1])
