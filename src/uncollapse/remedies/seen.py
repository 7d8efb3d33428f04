"""One forward of a model with remedies, watched: what each edit changed, and whether as its formula says."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
from uncollapse.models.plain import RunBatch, first_tensor


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
    noise: float = 0.0  # effect that rounding explains

    @property
    def does_something(self) -> bool:
        """Whether it changes more than rounding does, or can learn to."""
        return self.effect > self.noise or self.gradient > 0  # false for nan

    @property
    def acts(self) -> bool:
        """Whether it does something, what it does is its formula, and its parameters learn."""
        return self.does_something and not self.error > self.allowed and self.gradient != 0


@dataclass
class Seen:
    """A forward and a backward pass over one batch."""

    output: Tensor
    loss: Tensor
    batch: Any
    run: RunBatch
    calls: dict[int, Observation] = field(default_factory=dict)
    projected: dict[tuple[int, str], tuple[Tensor, Tensor]] = field(default_factory=dict)
    gradients: dict[nn.Parameter, Tensor] = field(default_factory=dict)

    def gradient_of(self, parameters: Sequence[nn.Parameter]) -> float:
        """The norm of the gradient of these parameters, nan if there are none, or none that is trained."""
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            return math.nan
        return math.sqrt(sum(float(self.gradients[p].square().sum()) for p in trained if p in self.gradients))


def see(model: nn.Module, batch: Any, run: RunBatch) -> Seen:
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
            output = output_of(result)
            loss = output.float().square().mean() if output.dtype in HALF else output.square().mean()
            trained = [p for p in model.parameters() if p.requires_grad]
            found = torch.autograd.grad(loss, trained, allow_unused=True) if trained else ()
    finally:
        if shared is not None:
            shared.observe = shared.observe_projection = None
        for module, mode in training.items():
            module.training = mode
    gradients = {p: g for p, g in zip(trained, found, strict=True) if g is not None}
    return Seen(output.detach(), loss.detach(), batch, run, calls, projected, gradients)


HALF = (torch.float16, torch.bfloat16)
NOISE = 1e-12  # of two results in float64


def output_of(result: Any) -> Tensor:
    """The logits of what a model gave, or its first floating-point tensor."""
    output = first_tensor([getattr(result, "logits", None), result])
    if output is None:
        raise ValueError(f"the model gave {type(result).__name__} without a floating-point tensor to compare.")
    return output


class Change(NamedTuple):
    """What a remedy changes in one result: how far, how far from its formula, and what rounding explains of it."""

    effect: float
    error: float
    noise: float

    @classmethod
    def of(cls, shown: Tensor, expected: Tensor, without: Tensor) -> Change:
        """From what the model gave, what the formula gives, and what it gives without the remedy."""
        effect, rest = expected.double() - without.double(), shown.double() - expected.double()
        size = float(effect.square().sum())
        share = 1.0 + float((rest * effect).sum()) / size if size else 0.0  # of the effect that the model shows
        unsure = (float(rest.square().sum()) / size / rest.numel()) ** 0.5 if size else math.inf  # its standard error
        far = distance(expected, without)
        return cls(far, distance(shown, expected), 5.0 * unsure * far if share > 0.5 else math.inf)


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
    effect, _, noise = max(changes)
    error, allowed = max(change.error for change in changes), rounding(seen.output.dtype)
    return LayerProof(edit.name, layer.n, effect, error, gradient, allowed=allowed, noise=noise)


def rounding(dtype: torch.dtype) -> float:
    """The error, of the largest entry, that rounding explains."""
    return 1e-3 if dtype == torch.float32 else float(torch.finfo(dtype).eps ** 0.5)


@torch.no_grad()
def _projection_changes(layer: EditedLayer, edit: Edit, seen: Seen) -> list[Change]:
    """Of queries and keys: how far with the edit from without it, and from its formula in float64."""
    twin, found = wide(edit), []
    for side in ("queries", "keys"):
        if (layer.n, side) in seen.projected:
            before, after = seen.projected[layer.n, side]
            found.append(Change.of(after, getattr(twin, side)(before.double()), before))
    return found


@torch.no_grad()
def _call_changes(layer: EditedLayer, edit: Edit, seen: Seen) -> list[Change]:
    one = seen.calls.get(layer.n)
    if one is None:
        return []
    edits = [wide(other) for other in one.edits]
    call, around = doubled(one.call), doubled(one.around)
    expected = written_out(call, around, edits)
    without = written_out(call, around, [e for e, stock in zip(edits, one.edits, strict=True) if stock is not edit])
    if layer.is_converted:
        return [Change(distance(expected, without), math.nan, NOISE)]  # of its own scores, without what is inherited
    return [Change.of(one.out, expected, without)]


def written_out(
    call: AttentionCall, around: Surroundings, edits: Sequence[Edit], weights: Tensor | None = None
) -> Tensor:
    """The attention of a call with edits, as the formulas say: the whole matrix of weights, in plain torch.

    `weights` (B, H, Q, K) are others than those of the call, such as those of inherited scores.
    """
    for edit in edits:
        call = edit.before(call, around)
    value = call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], dim=1)
    out = (weights_of(call) if weights is None else weights) @ value
    for edit in edits:
        out = edit.after(out, call, around)
    return out


def wide(edit: Edit) -> Edit:
    """A copy of an edit in float64."""
    return copy.deepcopy(edit).double()


def doubled(values: Any) -> Any:
    """The same named tuple with its tensors in float64."""
    wide = [v.detach().double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values]
    return type(values)(*wide)


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference, of the largest entry."""
    return float((one.double() - other.double()).abs().max() / other.double().abs().max().clamp(min=1e-300))
