"""Tensor parallelism: each process attends with some of the heads, and a report is of all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from uncollapse.attention.scores import ScoreSource


def head_group(model: nn.Module) -> dist.ProcessGroup | None:
    """The processes among which the heads of a model are divided, None if each has all of them."""
    for parameter in model.parameters():
        if isinstance(parameter, DTensor) and "tp" in (parameter.device_mesh.mesh_dim_names or ()):
            group = parameter.device_mesh.get_group("tp")
            return group if group.size() > 1 else None
    return None


class GatheredScores:
    """The scores of every head, from processes that have the heads one after the other; all of them must read."""

    def __init__(self, source: ScoreSource, group: dist.ProcessGroup) -> None:
        batch, heads, queries, keys = source.shape
        self.shape = (batch, heads * group.size(), queries, keys)
        self.device, self.source, self.group = source.device, source, group

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        own = self.source.rows(start, stop, keys).contiguous()
        parts = [torch.empty_like(own) for _ in range(self.group.size())]
        dist.all_gather(parts, own, group=self.group)
        return torch.cat(parts, dim=1)

    def part(self, first: int, last: int) -> GatheredScores:
        return GatheredScores(self.source.part(first, last), self.group)
