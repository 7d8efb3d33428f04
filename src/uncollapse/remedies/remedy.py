"""Remedy: the shape that all remedies share, and how one is written to a config and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from uncollapse.models.anatomy import Anatomy, anatomy
from uncollapse.models.convert import find_transformers_model
from uncollapse.models.editing import (
    REMEDIES_KEY,
    Edit,
    EditedLayer,
    EditedModel,
    add_edit,
    begin_editing,
    edited_model,
    end_editing,
    remove_edit,
)
from uncollapse.models.plain import Plan

from .contents import BY_NAME
from .seen import LayerProof, Seen, edit_row

APPLIED = "_uncollapse_remedies"  # attribute of the model: the remedies that it has


@dataclass(frozen=True)
class Remedy:
    """A remedy with its settings, which `uncollapse.apply` gives to a model."""

    name: ClassVar[str]
    travels: ClassVar[bool] = False  # a saved model has it again when it is loaded
    needs_optimizer: ClassVar[bool] = False

    def install(self, model: nn.Module, optimizer: Optimizer | None, example: Any) -> None:
        """Change the model, or raise a ValueError and leave it as it was."""
        raise NotImplementedError

    def remove(self, model: nn.Module) -> None:
        """Undo `install`, bit for bit."""
        raise NotImplementedError

    def prove(self, model: nn.Module, seen: Seen) -> list[LayerProof]:
        """What one forward has shown of it, a row for each layer."""
        raise NotImplementedError

    def to_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {"name": self.name, **asdict(self)}


def named(name: str, **settings: Any) -> Remedy:
    """The remedy of this name; a ValueError if there is none, or if it has no such setting.

    >>> named("soft_cap", cap=30.0)
    SoftCap(cap=30.0)
    """
    if name not in BY_NAME:
        raise ValueError(f"there is no remedy {name!r}; there are {', '.join(BY_NAME)}.")
    file, _, kind = BY_NAME[name].home.partition(":")
    found: type[Remedy] = getattr(import_module(f".{file}", __package__), kind)
    known = [field.name for field in fields(found)]
    unknown = next((key for key in settings if key not in known), None)
    if unknown is not None:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ValueError(f"{name} has no setting {unknown!r}; {has}.")
    missing = next((f.name for f in fields(found) if not _has_default(f) and f.name not in settings), None)
    if missing is not None:
        raise ValueError(f"{name} needs {missing}: uncollapse.apply(model, {name!r}, {missing}=...).")
    return found(**settings)


def _has_default(field: Any) -> bool:
    from dataclasses import MISSING

    return field.default is not MISSING or field.default_factory is not MISSING


def from_data(data: Any) -> Remedy:
    """The remedy that `to_data` wrote; a ValueError if it is none: configs come from strangers too."""
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        raise ValueError(f"a remedy in a config must be an object with a name, got {data!r}.")
    settings = {str(key): value for key, value in data.items() if key != "name"}
    try:
        remedy = named(data["name"], **settings)
    except TypeError as error:
        raise ValueError(f"the settings of {data['name']} in the config cannot be used: {error}.") from None
    if not remedy.travels:
        raise ValueError(f"{data['name']} belongs to no saved model; apply it again.")
    return remedy


def applied(model: nn.Module) -> list[Remedy]:
    """The remedies that a model has, in the order in which they were applied."""
    found = next((module.__dict__[APPLIED] for module in model.modules() if APPLIED in module.__dict__), ())
    return list(found)


def attention_in(model: nn.Module, example: Any) -> Anatomy:
    """Where attention is in a model; `example` is a batch to find it with, or a plan that was made before."""
    return Anatomy(model, example) if isinstance(example, Plan) else anatomy(model, example)


def owner_of(model: nn.Module) -> nn.Module:
    """The module that remembers the remedies: the transformers model inside, or the model itself."""
    holder = next((module for module in model.modules() if APPLIED in module.__dict__), None)
    return holder or find_transformers_model(model) or model


def remember(model: nn.Module, remedies: list[Remedy]) -> None:
    """Note the remedies of a model on it, and in its config those that are saved with it."""
    owner = owner_of(model)
    if remedies:
        setattr(owner, APPLIED, remedies)
    elif APPLIED in owner.__dict__:
        delattr(owner, APPLIED)
    if find_transformers_model(model) is None:
        return
    config: Any = owner.config
    saved = [remedy.to_data() for remedy in remedies if remedy.travels]
    if saved:
        setattr(config, REMEDIES_KEY, saved)
    elif hasattr(config, REMEDIES_KEY):
        delattr(config, REMEDIES_KEY)


@dataclass(frozen=True)
class EditRemedy(Remedy):
    """A remedy that edits what the attention layers compute."""

    travels: ClassVar[bool] = True
    kind: ClassVar[type[Edit]]

    def edit(self, layer: EditedLayer, like: Tensor) -> Edit:
        """What it does in one layer; parameters have the dtype and device of `like`."""
        raise NotImplementedError

    def refusal(self, layer: EditedLayer) -> str:
        """Why it cannot act in this layer; empty: it can."""
        return ""

    def install(self, model: nn.Module, optimizer: Optimizer | None, example: Any) -> None:
        """Add the edit to every layer."""
        self.install_in(model, attention_in(model, example) if edited_model(model) is None else None)

    def install_in(self, model: nn.Module, found: Anatomy | None) -> EditedModel:
        """The same where the anatomy is known; None if the model has edits already."""
        before = edited_model(model)
        shared = begin_editing(found) if before is None and found is not None else before
        assert shared is not None
        try:
            for layer in shared.layers:
                why = self._call_refusal(layer) or self.refusal(layer)
                if why:
                    raise ValueError(f"{self.name} cannot act in {shared.plan.model}: {layer.name} {why}.")
            if self.kind.at_call:
                _use_sdpa(model, shared)
        except ValueError:
            if before is None:
                end_editing(model)
            raise
        for layer in shared.layers:
            parameters = (p for p in layer.attention.parameters() if p.is_floating_point())
            add_edit(layer, self.edit(layer, next(parameters).detach()))
        return shared

    def _call_refusal(self, layer: EditedLayer) -> str:
        if self.kind.at_call and layer.plan.kind == "product":
            return "writes its softmax out; call scaled_dot_product_attention there"
        if self.kind.at_call and layer.plan.folded:
            return "has its heads folded into the batch; give it queries of shape (batch, heads, tokens, size)"
        if self.kind.at_projections and layer.plan.kind != "multihead" and not layer.projections:
            return "has W_Q and W_K where they were not found; uncollapse.plan(model, example=batch) shows what was"
        return ""

    def remove(self, model: nn.Module) -> None:
        """Take the edits away; with the last ones, the hooks."""
        shared = edited_model(model)
        if shared is None:
            return
        for layer in shared.layers:
            for edit in layer.edits:
                if edit.name == self.name:
                    remove_edit(layer, edit)
                    layer.follow_projections()
        if not any(layer.edits for layer in shared.layers):
            inner = find_transformers_model(model)
            if inner is not None and shared.attention is not None:
                inner.set_attn_implementation(shared.attention)
            end_editing(model)

    def prove(self, model: nn.Module, seen: Seen) -> list[LayerProof]:
        """A row for each layer: what its edit changes, and whether as the formula says."""
        shared = edited_model(model)
        layers = [] if shared is None else shared.layers
        return [edit_row(layer, edit, seen) for layer in layers for edit in layer.edits if edit.name == self.name]


def _use_sdpa(model: nn.Module, shared: EditedModel) -> None:
    """Have a transformers model call torch's attention function, which the edits see."""
    inner = find_transformers_model(model)
    if inner is None or shared.attention is not None:
        return
    present = inner.config._attn_implementation
    if present in ("sdpa", "hopfield"):
        return
    try:
        inner.set_attn_implementation("sdpa")
    except ValueError as error:
        raise ValueError(
            f"{type(inner).__name__} cannot run on scaled_dot_product_attention, through which remedies change its "
            f"attention: {' '.join(str(error).split())[:200]}"
        ) from None
    shared.attention = present
