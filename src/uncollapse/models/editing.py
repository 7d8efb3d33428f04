"""Edits: how a remedy changes what an attention layer computes, in any model, without touching its code.

An edit is a small module that hangs below the attention module, so that its parameters are trained, moved and saved
with it. It acts in up to two places. A hook on the projections of queries and keys hands it each head as it leaves
W_Q or W_K, before any rotation. A mode over the attention module hands it the call of
`scaled_dot_product_attention` (or of nn.MultiheadAttention) before and after it runs; calls of a converted model come
from its own attention function. Checkpointing runs both again, because both are hooks of modules inside the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ._attention_call import AttentionCall, attend, weights_of
from ._edit import Edit, Surroundings
from ._edited_layer import EditedLayer, EditedModel, Observation
from ._editing_hooks import LAYER, hook, unhook
from .anatomy import Anatomy
from .plain import Plan, conversion_of

__all__ = [
    "PREFIX",
    "REMEDIES_KEY",
    "AttentionCall",
    "Edit",
    "EditedLayer",
    "EditedModel",
    "Observation",
    "Surroundings",
    "add_edit",
    "attend",
    "begin_editing",
    "edited_layer",
    "edited_model",
    "edits_of_softmax",
    "end_editing",
    "hooks_last",
    "known_plan",
    "refuse_inheriting",
    "remove_edit",
    "weights_of",
]

REMEDIES_KEY = "uncollapse_remedies"  # where the remedies of a model are written in its config
PREFIX = "uncollapse_"  # of an edit's name in its attention module, and so of its parameters in a checkpoint
EDITED = "_uncollapse_edited_model"  # attribute of the root of the plan


def edited_model(model: nn.Module) -> EditedModel | None:
    """What was edited in this model or in one inside it, None if nothing was."""
    return next((module.__dict__[EDITED] for module in model.modules() if EDITED in module.__dict__), None)


def edited_layer(attention: nn.Module) -> EditedLayer | None:
    """What the hooks of an attention module share, None if it is not edited."""
    found = attention.__dict__.get(LAYER)
    return found if isinstance(found, EditedLayer) else None


def known_plan(model: nn.Module) -> Plan | None:
    """The plan of a module that is converted or edited, where a trial forward would not see stock attention."""
    conversion, shared = conversion_of(model), model.__dict__.get(EDITED)
    if conversion is not None:
        return conversion.plan
    return None if shared is None else shared.plan


def edits_of_softmax(attention: nn.Module) -> tuple[float | None, Tensor | None]:
    """The cap and the sink (H,) that edits give the calls of an attention module, None where they give none."""
    layer = edited_layer(attention)
    edits = [] if layer is None else layer.edits
    cap = next((edit.cap for edit in edits if edit.cap is not None), None)
    return cap, next((edit.sink for edit in edits if edit.sink is not None), None)


def begin_editing(found: Anatomy) -> EditedModel:
    """Put the hooks on every attention layer; they do nothing until an edit is added."""
    shared = EditedModel(found)
    setattr(found.root, EDITED, shared)
    hook(shared)
    return shared


def add_edit(layer: EditedLayer, edit: Edit) -> None:
    """Add an edit to a layer; it acts after those that are there."""
    layer.attention.add_module(PREFIX + edit.name, edit)
    layer.follow_projections()  # here, because a graph that is being compiled cannot add hooks


def remove_edit(layer: EditedLayer, edit: Edit) -> None:
    """Take an edit away."""
    delattr(layer.attention, PREFIX + edit.name)


def end_editing(model: nn.Module) -> None:
    """Undo `begin_editing` and take every edit away; a model that is not edited stays as it is."""
    for module in list(model.modules()):
        shared = module.__dict__.get(EDITED)
        if shared is not None:
            unhook(shared)
            for layer in shared.layers:
                for edit in layer.edits:
                    remove_edit(layer, edit)
            delattr(module, EDITED)


def refuse_inheriting(model: nn.Module) -> None:
    """Raise if an edit of the model does not go with inherited scores."""
    shared = edited_model(model)
    edits = [] if shared is None else [edit for layer in shared.layers for edit in layer.edits]
    other = next((edit for edit in edits if not edit.inherits), None)
    if other is not None:
        raise ValueError(
            f"hopfield does not go with {other.name}: inherited scores have an attention function of their own; "
            "uncollapse.restore(model) first."
        )


@contextmanager
def hooks_last(model: nn.Module) -> Iterator[None]:
    """Take the hooks off while a conversion adds its own, and put them behind those."""
    shared = edited_model(model)
    if shared is not None:
        unhook(shared)
    try:
        yield
    finally:
        if shared is not None:
            hook(shared)
