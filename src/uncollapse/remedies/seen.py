"""One forward of a model with remedies, watched: what each edit changed, and whether as its formula says."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from uncollapse.models.editing import (
    AttentionCall,
    Edit,
    EditedLayer,
    Observation,
    Surroundings,
    edited_model,
    weights_of,
)
from uncollapse.models.plain import first_tensor


@dataclass(frozen=True)
class LayerProof:
    """What was measured of one remedy in one layer."""

    remedy: str
    layer: int  # from 1
    effect: float  # how much it changes, of the size of what it changes
    error: float  # how far that is from the formula, likewise; nan where it was not computed again
    gradient: float = math.nan  # norm of the gradient of its parameters; nan where none is trained
    note: str = ""
    allowed: float = 1e-3  # error that rounding explains

    @property
    def acts(self) -> bool:
        """Whether it does something, or can learn to, what it does is its formula, and its parameters learn."""
        does = self.effect > 0 or self.gradient > 0  # false for nan
        return does and not self.error > self.allowed and self.gradient != 0


@dataclass
class Seen:
    """A forward and a backward pass over one batch."""

    output: Tensor
    loss: Tensor
    batch: Any
    calls: dict[int, Observation] = field(default_factory=dict)
    projected: dict[tuple[int, str], tuple[Tensor, Tensor]] = field(default_factory=dict)
    gradients: dict[nn.Parameter, Tensor] = field(default_factory=dict)

    def gradient_of(self, parameters: Sequence[nn.Parameter]) -> float:
        """The norm of the gradient of these parameters, nan if there are none, or none that is trained."""
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            return math.nan
        return math.sqrt(sum(float(self.gradients[p].square().sum()) for p in trained if p in self.gradients))


def see(model: nn.Module, batch: Any, run: Callable[[Any, Any], Any]) -> Seen:
    """Run the model once on a batch, in evaluation mode and with gradients; gradients of parameters are left alone."""
    training = {module: module.training for module in model.modules()}
    shared = edited_model(model)
    calls: dict[int, Observation] = {}
    projected: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
    if shared is not None:
        shared.observe = lambda one: calls.update({one.layer.n: one})
        shared.observe_projection = lambda layer, side, before, after: projected.update(
            {(layer.n, side): (before, after)}
        )
    try:
        model.train(False)
        with torch.enable_grad():
            result = run(model, batch)
            output = first_tensor([getattr(result, "logits", None), result])
            if output is None:
                raise ValueError(f"{type(model).__name__} gave no floating-point tensor, so nothing can be compared.")
            loss = output.float().square().mean() if output.dtype in HALF else output.square().mean()
            trained = [p for p in model.parameters() if p.requires_grad]
            found = torch.autograd.grad(loss, trained, allow_unused=True) if trained else ()
    finally:
        if shared is not None:
            shared.observe = shared.observe_projection = None
        for module, mode in training.items():
            module.training = mode
    gradients = {p: g for p, g in zip(trained, found, strict=True) if g is not None}
    return Seen(output.detach(), loss.detach(), batch, calls, projected, gradients)


HALF = (torch.float16, torch.bfloat16)


def edit_row(layer: EditedLayer, edit: Edit, seen: Seen) -> LayerProof:
    """What one edit did in one layer."""
    changes = []
    if edit.at_projections:
        changes += _projection_changes(layer, edit, seen)
    if edit.at_call:
        changes += _call_changes(layer, edit, seen)
    gradient = seen.gradient_of(list(edit.parameters()))
    if not changes:
        return LayerProof(edit.name, layer.n, 0.0, math.nan, gradient, f"{layer.name} did not run it")
    effect, error = max(change for change, _ in changes), max(error for _, error in changes)
    return LayerProof(edit.name, layer.n, effect, error, gradient, allowed=rounding(seen.output.dtype))


def rounding(dtype: torch.dtype) -> float:
    """The error, of the largest entry, that rounding explains."""
    return 1e-3 if dtype == torch.float32 else float(torch.finfo(dtype).eps ** 0.5)


@torch.no_grad()
def _projection_changes(layer: EditedLayer, edit: Edit, seen: Seen) -> list[tuple[float, float]]:
    """Of queries and keys: how far with the edit from without it, and from its formula in float64."""
    twin, found = _wide(edit), []
    for side in ("queries", "keys"):
        if (layer.n, side) in seen.projected:
            before, after = seen.projected[layer.n, side]
            expected = getattr(twin, side)(before.double())
            found.append((_distance(after, before), _distance(after, expected)))
    return found


@torch.no_grad()
def _call_changes(layer: EditedLayer, edit: Edit, seen: Seen) -> list[tuple[float, float]]:
    one = seen.calls.get(layer.n)
    if one is None:
        return []
    edits = [_wide(other) for other in one.edits]
    call, around = _doubled(one.call), _doubled(one.around)
    expected = written_out(call, around, edits)
    without = written_out(call, around, [e for e, stock in zip(edits, one.edits, strict=True) if stock is not edit])
    if layer.is_converted:
        return [(_distance(expected, without), math.nan)]  # scores are inherited, which is not written out here
    return [(_distance(one.out, without), _distance(one.out, expected))]


def written_out(call: AttentionCall, around: Surroundings, edits: Sequence[Edit]) -> Tensor:
    """The attention of a call with edits, as the formulas say: the whole matrix of weights, in plain torch."""
    for edit in edits:
        call = edit.before(call, around)
    value = call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], dim=1)
    out = weights_of(call) @ value
    for edit in edits:
        out = edit.after(out, call, around)
    return out


def _wide(edit: Edit) -> Edit:
    return copy.deepcopy(edit).double()


def _doubled(values: Any) -> Any:
    wide = [v.detach().double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values]
    return type(values)(*wide)


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference, of the largest entry."""
    return float((one.double() - other.double()).abs().max() / other.double().abs().max().clamp(min=1e-300))
