"""Where the attention of any model is: from the table of families, or from a trial forward. One plan for both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from . import plain
from .convert import find_transformers_model
from .plain import Argument, LayerPlan, Plan, Stack, WeightRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .families import Family

ADAPTER = ".base_layer"  # where an adapter such as LoRA keeps the module that it wraps


class Anatomy(NamedTuple):
    """The layers of self-attention in a model, in the order in which they run."""

    root: nn.Module  # the paths of the plan start here
    plan: Plan

    @property
    def layers(self) -> list[LayerPlan]:
        """The layers of self-attention."""
        return [layer for stack in self.plan.own for layer in stack.layers]


def anatomy(model: nn.Module, example: Any = None) -> Anatomy:
    """Find the attention of a model; `example` is a batch to find it with, where no table knows it."""
    inner = find_transformers_model(model)
    if inner is not None:
        from .families import family_of

        family = family_of(inner)
        if family is not None:
            return Anatomy(inner.base_model, _of_family(inner, family))
        if example is None:
            from ._trial import tiny_batch

            example = tiny_batch(inner)
        return Anatomy(inner, _understood(inner, example))
    conversion = plain.conversion_of(model)
    return Anatomy(model, _understood(model, example) if conversion is None else conversion.plan)


def _understood(model: nn.Module, example: Any) -> Plan:
    plan, _ = plain.find(model, example)
    if not plan.own:
        path, why = next(iter(plan.left_out), ("", "nothing attends"))
        raise ValueError(f"no self-attention was found in {type(model).__name__}; {path or 'the model itself'}: {why}.")
    return plan


def _of_family(model: PreTrainedModel, family: Family) -> Plan:
    """The plan of a model that the table knows; no forward runs."""
    from .families import blocks_of, layers_of

    blocks = blocks_of(model, family)
    found = []
    for index, layer in enumerate(layers_of(model, family)):
        block = f"{family.blocks}.{index}"
        query, key = _rows(blocks[index], block, family, model.config.num_attention_heads)
        found.append(
            LayerPlan(
                name=layer.name,
                kind="sdpa",
                heads=model.config.num_attention_heads,
                block=block,
                stream=Argument(block),
                normed=Argument(layer.name),
                output=f"{block}.{family.output}",
                fits=("stream", "normed"),
                query=query,
                key=key,
            )
        )
    return Plan(type(model).__name__, (Stack(family.blocks, tuple(found)),))


def _rows(block: nn.Module, path: str, family: Family, heads: int) -> tuple[WeightRows, WeightRows]:
    """Where W_Q and W_K of each head are."""
    weights: Any = [block.get_submodule(part).weight for part in (family.query, family.key)]
    names = [f"{path}.{part}.weight" for part in (family.query, family.key)]
    if family.layout == "linear":
        size = weights[0].shape[0] // heads
        starts = [tuple(range(0, weight.shape[0], size)) for weight in weights]
        return WeightRows(names[0], starts[0], size), WeightRows(names[1], starts[1], size)
    columns = family.layout == "fused_conv1d"
    width = weights[0].shape[1 if columns else 0] // 3
    size = width // heads
    step = size if columns else 3 * size  # the next head's queries
    offset = width if columns else size  # from queries to keys
    first = tuple(range(0, step * heads, step))
    return (
        WeightRows(names[0], first, size, columns=columns),
        WeightRows(names[1], tuple(start + offset for start in first), size, columns=columns),
    )


def projection_of(rows: WeightRows) -> str:
    """The path of the module that projects: an adapter around it, not what the adapter wraps."""
    return rows.parameter.rpartition(".")[0].removesuffix(ADAPTER)
