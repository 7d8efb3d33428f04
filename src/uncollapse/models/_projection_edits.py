"""Edits of queries and keys: a hook on the modules that project them hands each head to the edits of the layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ._calls import unflattened
from ._plan import LayerPlan, WeightRows
from .anatomy import projection_of

if TYPE_CHECKING:
    from ._edited_layer import EditedLayer

PROJECTED = "_uncollapse_projected"  # attribute of a projecting module: the layer, and what it projects
ProjectedSides = tuple[tuple[str, WeightRows], ...]  # "queries" or "keys", and where they are in the output of a module


class ProjectionPlace(NamedTuple):
    """A module that projects queries, keys or both; an adapter may take its place in the module above it."""

    parent: nn.Module
    child: str
    sides: ProjectedSides

    @property
    def module(self) -> nn.Module:
        """The module as it is now."""
        return self.parent.get_submodule(self.child)


def projections_of(plan: LayerPlan, root: nn.Module) -> list[ProjectionPlace]:
    """The modules that project queries and keys; none where the call projects by itself, or where none was found."""
    if plan.kind == "multihead" or plan.query is None or plan.key is None:
        return []
    sides = (("queries", plan.query), ("keys", plan.key))
    found = []
    for path in dict.fromkeys(projection_of(rows) for _, rows in sides):
        parent, _, child = path.rpartition(".")
        own = tuple((side, rows) for side, rows in sides if projection_of(rows) == path)
        found.append(ProjectionPlace(root.get_submodule(parent), child, own))
    return found


def edit_projection(module: nn.Module, args: tuple[Any, ...], result: Tensor) -> Tensor:
    """After W_Q, W_K or a module with both: the edits get each head."""
    layer, sides = getattr(module, PROJECTED)
    if not all(_in_one_piece(rows) for _, rows in sides):
        return _edited_rows(layer, sides, result)
    sizes, changes = _pieces(sides, result.shape[-1])
    pieces = [
        piece if change is None else _edited_heads(layer, change[0], piece, change[1].size)
        for piece, change in zip(torch.split(result, sizes, dim=-1), changes, strict=True)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


def _pieces(sides: ProjectedSides, width: int) -> tuple[list[int], list[tuple[str, WeightRows] | None]]:
    """How wide the pieces of a projection are, and what each is; None for what no edit changes."""
    sizes: list[int] = []
    changes: list[tuple[str, WeightRows] | None] = []
    reached = 0
    for side, rows in sorted(sides, key=lambda pair: pair[1].starts[0]):
        if rows.starts[0] > reached:
            sizes.append(rows.starts[0] - reached)
            changes.append(None)
        sizes.append(rows.size * len(rows.starts))
        changes.append((side, rows))
        reached = rows.starts[0] + sizes[-1]
    if reached < width:
        sizes.append(width - reached)
        changes.append(None)
    return sizes, changes


def _in_one_piece(rows: WeightRows) -> bool:
    return rows.step == 1 and rows.starts == tuple(rows.starts[0] + rows.size * h for h in range(len(rows.starts)))


def _edited_rows(layer: EditedLayer, sides: ProjectedSides, result: Tensor) -> Tensor:
    """The same where the rows of a side do not lie side by side."""
    for side, rows in sides:
        places = [start + rows.step * d for start in rows.starts for d in range(rows.size)]
        index = torch.tensor(places, device=result.device)
        result = result.index_copy(-1, index, _edited_heads(layer, side, result.index_select(-1, index), rows.size))
    return result


def _edited_heads(layer: EditedLayer, side: str, projected: Tensor, size: int) -> Tensor:
    return edited_side(layer, side, unflattened(projected, -1, (-1, size))).flatten(-2)


def edited_side(layer: EditedLayer, side: str, heads: Tensor) -> Tensor:
    """Queries or keys (..., H, D) after the edits."""
    changed = heads
    for edit in layer.edits:
        changed = edit.queries(changed) if side == "queries" else edit.keys(changed)
    if layer.shared.observe_projection is not None:
        layer.shared.observe_projection(layer, side, heads, changed)
    return changed
