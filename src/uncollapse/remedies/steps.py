"""Hooks on an optimizer's steps that belong to a model: a copy of the model does not share them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from uncollapse.models.anatomy import Anatomy, anatomy
from uncollapse.models.convert import find_transformers_model
from uncollapse.models.plain import Plan

from .remedy import owner_of

OTHER_OPTIMIZER = "this optimizer does not have W_Q and W_K of the model; give the one that trains it."


@dataclass
class StepHooks:
    """What runs before and after each step of one optimizer; `first` runs before what others have added."""

    optimizer: Optimizer
    plan: Plan | None = None  # where the weights are that it is about
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None
    first: bool = False
    handles: list[Any] = field(default_factory=list)

    def add(self) -> None:
        """Register the hooks."""
        before, after = self.before, self.after
        if before is not None:
            self.handles.append(self.optimizer.register_step_pre_hook(_calling(before)))
        if after is not None:
            self.handles.append(self.optimizer.register_step_post_hook(_calling(after)))

    def remove(self) -> None:
        """Remove them."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


def _calling(function: Callable[[], object]) -> Callable[..., None]:
    """A hook that changes no argument of the step, whatever the function gives back."""

    def hook(*_: Any) -> None:
        function()

    return hook


_HOOKS: weakref.WeakKeyDictionary[nn.Module, dict[str, list[StepHooks]]] = weakref.WeakKeyDictionary()


def on_steps(model: nn.Module, remedy: str, hooks: StepHooks) -> None:
    """Let a remedy follow the steps of an optimizer."""
    known = _HOOKS.setdefault(owner_of(model), {})
    hooks.add()
    if hooks.first:  # what scales an update must see it before what changes the weights afterwards
        for others in known.values():
            for other in others:
                other.remove()
                other.add()
    known.setdefault(remedy, []).append(hooks)


def steps_of(model: nn.Module, remedy: str) -> list[StepHooks]:
    """The hooks of a remedy of this model."""
    return _HOOKS.get(owner_of(model), {}).get(remedy, [])


def forget_steps(model: nn.Module, remedy: str) -> None:
    """Remove them."""
    for hooks in _HOOKS.get(owner_of(model), {}).pop(remedy, []):
        hooks.remove()


def followed(model: nn.Module, remedy: str) -> Anatomy | None:
    """Where the weights of a model are whose steps a remedy follows; None if it follows none."""
    plan = next((hooks.plan for hooks in steps_of(model, remedy)), None)
    if plan is None:
        return None
    return Anatomy(owner_of(model), plan) if find_transformers_model(model) is None else anatomy(model)


def trains(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> list[bool]:
    """Which of these parameters an optimizer has."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [id(parameter) in known for parameter in parameters]
