"""What an update does to W_Q and W_K, read between two hooks of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from uncollapse.diagnosis.plain import head_weights
from uncollapse.metrics import qk_scale, qk_trace, qk_update
from uncollapse.models.convert import find_transformers_model
from uncollapse.models.plain import Plan, WeightRows

NAN = float("nan")


class LayerWeights(NamedTuple):
    """W_Q (H, D, M) and W_K (G, D, M) of a layer, one matrix a head."""

    layer: int
    query: Tensor
    key: Tensor


def layer_weights(model: nn.Module, plans: list[Plan]) -> Iterator[LayerWeights]:
    """The query and key weights, gathered for one layer at a time; a ValueError says why there are none."""
    inner = find_transformers_model(model)
    if inner is not None:
        from uncollapse.models.families import each_query_key_weights, family_of

        if family_of(inner) is not None:
            for layer, pair in enumerate(each_query_key_weights(inner, adapted=True), start=1):
                yield LayerWeights(layer, pair.query.detach(), pair.key.detach())
            return
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for number, query, key in _planned(plans):
        yield LayerWeights(number, head_weights(parameters, query), head_weights(parameters, key))


def stored_weights(model: nn.Module, plans: list[Plan]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The same as they are stored: what is sharded stays so where W_Q and W_K are parameters of their own."""
    inner = find_transformers_model(model)
    if inner is not None:
        from uncollapse.models.families import family_of, is_adapted, query_key_parameters

        if family_of(inner) is not None:
            pairs = [] if is_adapted(inner) else query_key_parameters(inner)
            if pairs and all(len(pair) == 2 for pair in pairs):
                yield from ((layer, q.detach(), k.detach()) for layer, (q, k) in enumerate(pairs, start=1))
            else:
                yield from layer_weights(model, plans)
            return
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for number, query, key in _planned(plans):
        yield number, _stored(parameters, query), _stored(parameters, key)


def _planned(plans: list[Plan]) -> list[tuple[int, WeightRows, WeightRows]]:
    """The number of each layer of self-attention whose W_Q and W_K were found, and where they are."""
    layers = enumerate((layer for plan in plans for stack in plan.stacks for layer in stack.layers), start=1)
    found = [
        (number, layer.query, layer.key)
        for number, layer in layers
        if not layer.cross and layer.query is not None and layer.key is not None
    ]
    if not found:
        raise ValueError("the query and key weights of this model were not found")
    return found


def _stored(parameters: dict[str, nn.Parameter], rows: WeightRows) -> Tensor:
    weight: Tensor = parameters[rows.parameter].detach()
    whole = len(rows.starts) * rows.size == weight.shape[1 if rows.columns else 0]
    return weight if whole else head_weights(parameters, rows)


def traces(weights: LayerWeights) -> tuple[list[float], list[float]]:
    """Traces tr W and tr W^T W of each head, in float64."""
    query, key = weights.query.double(), weights.key.double()
    key = key.repeat_interleave(len(query) // len(key), dim=0)
    return qk_trace(query, key).tolist(), qk_scale(query, key).tolist()


def gradient_norm(optimizer: Optimizer) -> Tensor:
    """The norm of all gradients together, where they are; NaN without one."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not gradients:
        return torch.tensor(NAN)
    return _number(get_total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients]))


def _number(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _norm(value: Tensor) -> float:
    return float(_number(torch.linalg.vector_norm(value, dtype=torch.promote_types(value.dtype, torch.float32))))


class UpdateStatistics:
    """What is kept of an update from before it: W_Q and W_K as they are stored, and the largest head of each layer."""

    def __init__(self, model: nn.Module, plans: list[Plan]) -> None:
        self.stored = {layer: (q.clone(), k.clone()) for layer, q, k in stored_weights(model, plans)}
        self.traces: dict[int, tuple[list[float], list[float]]] = {}
        self.heads: dict[int, tuple[int, int, Tensor, Tensor]] = {}  # layer -> head, group, W_Q, W_K of it
        for weights in layer_weights(model, plans):
            self.traces[weights.layer] = _, scale = traces(weights)
            head = max(range(len(scale)), key=scale.__getitem__)  # the same in every process, whatever its batch
            group = head // (len(weights.query) // len(weights.key))
            pair = (weights.query[head].clone(), weights.key[group].clone())
            self.heads[weights.layer] = (head, group, *pair)

    def table(self, model: nn.Module, plans: list[Plan], norm: float) -> pd.DataFrame:
        """After the update: one row a layer."""
        rows = {layer: self._moved(layer, q, k) for layer, q, k in stored_weights(model, plans)}
        for layer, query, key in layer_weights(model, plans):
            head, group, old_query, old_key = self.heads[layer]
            entropy, alignment = qk_update(old_query, old_key, query[head], key[group])
            trace, scale = self.traces[layer]
            rows[layer] |= {
                "qk_trace": sum(trace) / len(trace),
                "qk_scale": sum(scale) / len(scale),
                "decomposed_head": head + 1,
                "spectral_entropy": entropy.item(),
                "update_alignment": alignment.item(),
            }
        return pd.DataFrame([{"layer": layer, "gradient_norm": norm} | row for layer, row in rows.items()])

    def _moved(self, layer: int, query: Tensor, key: Tensor) -> dict[str, float]:
        numbers = {}
        for name, old, new in zip(("query", "key"), self.stored[layer], (query, key), strict=True):
            size = _norm(old)
            numbers[f"weight_norm_{name}"] = size
            numbers[f"update_ratio_{name}"] = _norm(new - old) / size if size else NAN
        return numbers
