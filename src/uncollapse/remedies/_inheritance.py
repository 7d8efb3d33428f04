"""One forward of a converted model, watched: what each layer inherits and skips, beside the formulas in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uncollapse.attention.reference import masked, softmax_of_visible
from uncollapse.attention.rule import ScoreRule
from uncollapse.models.anatomy import Anatomy, anatomy
from uncollapse.models.convert import restore, settings_of
from uncollapse.models.editing import EditedLayer, Observation, begin_editing, edited_model, end_editing
from uncollapse.models.learned import learned_of
from uncollapse.models.plain import quiet_evaluation

from .seen import NOISE, Change, LayerProof, Seen, distance, doubled, output_of, rounding, wide, written_out


@dataclass
class WatchedLayer:
    """What one forward has shown of a converted layer."""

    layer: EditedLayer
    call: Observation | None = None  # None where the softmax is written out
    tokens: Tensor | None = None  # what alpha multiplies
    attended: Tensor | None = None  # as it leaves W_O
    mixed: Tensor | None = None  # with the visible skip

    def coefficients(self, model: nn.Module) -> tuple[ScoreRule, float]:
        """The rule of this layer and alpha, with what was learned."""
        settings, learned = settings_of(model), learned_of(self.layer.attention)
        assert settings is not None
        return (settings.rule, settings.alpha) if learned is None else (learned.rule(), float(learned.alpha()))


def inheritance_rows(name: str, model: nn.Module, seen: Seen) -> list[LayerProof]:
    """A row for each layer that inherits scores; layer 1 may have nothing to inherit, and then has none."""
    rows: list[LayerProof] = []
    hidden: Tensor | None = None
    for one in watched(model, seen):
        n = one.layer.place[1]
        if one.call is None:
            inherited, hidden = Change(_moved(model, seen), 0.0, NOISE), None
        else:
            inherited, hidden = _inherited(one.call, one, model, None if n == 1 else hidden)
        note = "by the output: its softmax is written out" if one.call is None else ""
        changes = [inherited, *_skipped(one, model)]
        effect, _, noise = max(changes)
        error = max(change.error for change in changes)
        learned = learned_of(one.layer.attention)
        gradient = seen.gradient_of([] if learned is None else list(learned.parameters()))
        allowed = max(1e-3, rounding(seen.output.dtype))  # backends that keep scores in few bytes round more
        row = LayerProof(name, one.layer.n, effect, error, gradient, note, allowed, noise)
        if row.does_something or n > 1 or error > allowed:
            rows.append(row)
    return rows


def _moved(model: nn.Module, seen: Seen) -> float:
    """How far the output of the model is from that of the same model without inherited scores."""
    twin = restore(copy.deepcopy(model))
    with quiet_evaluation(twin):
        return distance(seen.output, output_of(seen.run(twin, seen.batch)))


@torch.no_grad()
def _inherited(seen: Observation, one: WatchedLayer, model: nn.Module, before: Tensor | None) -> tuple[Change, Tensor]:
    """How far attention is from that of the layer's own scores, and from the formula; and H_n (B, H, Q, K)."""
    call, around, edits = doubled(seen.call.with_mask()), doubled(seen.around), [wide(edit) for edit in seen.edits]
    key = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
    own = (call.query.shape[-1] ** -0.5 if call.scale is None else call.scale) * call.query @ key.mT
    rule, _ = one.coefficients(model)
    coefficients = rule.coefficients(one.layer.place[1])
    keep, take = (c.double().view(-1, 1, 1) if isinstance(c, Tensor) else c for c in coefficients)
    hidden = take * own if before is None else keep * before + take * own  # Eq. 54
    expected, stock = (
        written_out(call, around, edits, softmax_of_visible(masked(scores, call.attn_mask, call.is_causal)))
        for scores in (hidden, own)
    )
    return Change.of(seen.out, expected, stock), hidden


@torch.no_grad()
def _skipped(one: WatchedLayer, model: nn.Module) -> list[Change]:
    """How far the output of W_O is from that without the visible skip, and from the formula."""
    settings = settings_of(model)
    assert settings is not None
    if not settings.has_skip:
        return []
    if one.tokens is None or one.attended is None or one.mixed is None:
        return [Change(0.0, math.inf, 0.0)]  # the hooks saw no skip
    _, alpha = one.coefficients(model)
    weight = alpha - 1.0 if settings.skip == "replace" else alpha
    expected = weight * one.tokens.double() + (1.0 - alpha) * one.attended.double()  # Eq. 53
    return [Change.of(one.mixed, expected, one.attended)]


def watched(model: nn.Module, seen: Seen) -> list[WatchedLayer]:
    """The converted layers of a model, as one forward shows them."""
    settings = settings_of(model)
    assert settings is not None
    with _editing(model, seen) as (found, layers), quiet_evaluation(model):
        shown = {layer.n: WatchedLayer(layer) for layer in layers if layer.is_converted}
        handles = [handle for one in shown.values() for handle in _hooks(one, found, settings.skip)]
        shared = edited_model(model)
        assert shared is not None
        shared.observe = lambda call: setattr(shown[call.layer.n], "call", call)
        try:
            seen.run(model, seen.batch)
        finally:
            shared.observe = None
            for handle in handles:
                handle.remove()
    return list(shown.values())


@contextmanager
def _editing(model: nn.Module, seen: Seen) -> Iterator[tuple[Anatomy, list[EditedLayer]]]:
    """The layers of a model with hooks that see their calls; a model without edits is left as it was."""
    found, before = anatomy(model, seen.batch), edited_model(model)
    shared = begin_editing(found) if before is None else before
    try:
        yield found, shared.layers
    finally:
        if before is None:
            end_editing(model)


def _hooks(one: WatchedLayer, found: Anatomy, skip: str) -> Iterator[Any]:
    """What keeps the tokens, and the output of W_O before and after the visible skip."""
    plan = one.layer.plan
    source = plan.normed if skip == "normed" else plan.stream
    if source is None or plan.output is None:
        return

    key = source.key

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[key] if isinstance(key, int) and key < len(args) else None
        given = kwargs.get(str(key), kwargs.get("hidden_states")) if given is None else given
        one.tokens = given

    yield found.root.get_submodule(source.module).register_forward_pre_hook(note, with_kwargs=True)
    output = found.root.get_submodule(plan.output)
    yield output.register_forward_hook(_noting(one, "attended"), prepend=True)
    yield output.register_forward_hook(_noting(one, "mixed"))


def _noting(one: WatchedLayer, field: str) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        setattr(one, field, result[0] if isinstance(result, tuple) else result)

    return hook
