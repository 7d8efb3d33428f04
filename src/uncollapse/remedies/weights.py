"""The rows of W_Q and W_K in a model's parameters, one head at a time: what remedies of weights scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from uncollapse.models.anatomy import ADAPTER, Anatomy
from uncollapse.models.plain import LayerPlan, WeightRows


class HeadRows(NamedTuple):
    """The rows of one layer's queries or keys in a weight and in its bias."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    rows: WeightRows

    @property
    def is_whole(self) -> bool:
        """Whether the parameter holds nothing else."""
        size = self.weight.shape[1 if self.rows.columns else 0]
        return bool(size == self.rows.size * len(self.rows.starts))

    def places(self) -> Tensor:
        """The rows of each head: (heads, D)."""
        starts = torch.tensor(self.rows.starts, device=self.weight.device).unsqueeze(1)
        return starts + self.rows.step * torch.arange(self.rows.size, device=self.weight.device)

    def factors(self, values: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """The weight and its bias, each with factors for its entries: those of each head (heads,), 1 for the rest."""
        size = self.weight.shape[1 if self.rows.columns else 0]
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        all_rows = torch.ones(size, dtype=dtype, device=self.weight.device)
        all_rows[self.places().flatten()] = values.to(dtype).repeat_interleave(self.rows.size)
        found = [(self.weight, all_rows.unsqueeze(0 if self.rows.columns else 1))]
        found += [] if self.bias is None else [(self.bias, all_rows)]
        return [(parameter, _shared_out(parameter, factors)) for parameter, factors in found]

    @torch.no_grad()
    def scale(self, values: Tensor) -> None:
        """Multiply the weights and biases of each head by its factor (heads,)."""
        for parameter, factors in self.factors(values):
            parameter.mul_(factors)


def local_part(tensor: Tensor) -> Tensor:
    """The entries of a tensor that this process keeps."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _shared_out(parameter: nn.Parameter, factors: Tensor) -> Tensor:
    """The factors of the entries that this process keeps."""
    factors = factors.to(parameter.dtype)
    if isinstance(parameter, DTensor):
        return distribute_tensor(factors.expand(parameter.shape), parameter.device_mesh, parameter.placements)
    return factors


def query_key_rows(found: Anatomy, remedy: str) -> Iterator[tuple[HeadRows, HeadRows]]:
    """The rows of the queries and of the keys of each layer; a ValueError where they cannot be scaled."""
    for layer in found.layers:
        yield _rows(found, layer, layer.query, remedy), _rows(found, layer, layer.key, remedy)


def _rows(found: Anatomy, layer: LayerPlan, rows: WeightRows | None, remedy: str) -> HeadRows:
    if rows is None:
        sharded = any(isinstance(parameter, DTensor) for parameter in found.root.parameters())
        hint = "; give example=uncollapse.plan(model, example=batch), made before it was sharded" if sharded else ""
        raise ValueError(f"{remedy} needs W_Q and W_K of {layer.name}, which were not found{hint}.")
    path, _, name = rows.parameter.rpartition(".")
    module = found.root.get_submodule(path.removesuffix(ADAPTER))
    if hasattr(module, "base_layer"):
        raise ValueError(f"{remedy} needs plain weights, and {path} is wrapped by an adapter; merge the adapter first.")
    weight, bias = getattr(module, name), getattr(module, name.replace("weight", "bias"), None)
    if not isinstance(weight, nn.Parameter):
        raise ValueError(f"the weight of {path} is computed from others (a parametrisation); remove that first.")
    return HeadRows(weight, bias, rows)
