"""Taps: read attention and tokens in a forward that a training loop runs; the model computes what it would anyway.

A tap is attached for one forward and taken off behind it, so that checkpointing, which runs layers again, is read once.
Two routes, as in `diagnose`: models of transformers through the attention functions of `AttentionInterface`, which are
wrapped under their own names meanwhile; every other module through its attention calls. Where neither can look inside,
because the forward is compiled or its attention is a kernel that takes no mask, a part of the batch is run once more.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from uncollapse.models.convert import find_transformers_model
from uncollapse.models.editing import known_plan
from uncollapse.models.plain import Plan, conversion_of, find, quiet_evaluation

from .observer import Observer
from .plain import PlainView, attention_observed, numbered_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEQUENCES = 8  # of a batch that is run once more


class Tap(Protocol):
    """Reads forwards of one model into one observer; several may follow each other."""

    observer: Observer

    def open(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a forward of `module` with these arguments."""

    def close(self) -> None:
        """Behind it, also where it failed; a second call does nothing."""

    def finish(self) -> None:
        """After the last forward: say what could not be read, and number what attends besides the layers."""


def make_tap(model: nn.Module, observer: Observer, plans: list[Plan]) -> Tap:
    """The tap that fits the model as it is now; `plans` keeps what a trial forward found between measurements."""
    inner = find_transformers_model(model)
    why = why_beside(model)
    if why:
        observer.notes.append(f"Measured on a part of the batch, run once more without gradients: {why}.")
        return BesideTap(model, observer, plans)
    if inner is not None and conversion_of(model) is None and _by_interface(inner):
        from .interface_tap import InterfaceTap

        return InterfaceTap(inner, observer)
    return CallsTap(model, observer, plans)


def refuse_without_attention(model: nn.Module) -> None:
    """Raise a ValueError if a transformers model has no attention; of other modules the first forward tells."""
    inner = find_transformers_model(model)
    if inner is not None:
        from .stacks import find_stacks

        find_stacks(inner)


def prepare(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], plans: list[Plan]) -> None:
    """Find the attention calls of a module that is read through them, on the batch of its first forward."""
    inner = find_transformers_model(model)
    if inner is None or (conversion_of(model) is None and not _by_interface(inner)):
        plan_of(model, args, kwargs, plans)


def why_beside(model: nn.Module) -> str:
    """Why nothing can be read in the forward itself; empty where it can."""
    if any(is_compiled(module) for module in model.modules()):
        return "the model is compiled, and what is compiled cannot be looked into"
    inner = find_transformers_model(model)
    if inner is None or conversion_of(model) is not None or not _by_interface(inner):
        return ""
    from .interface_tap import READABLE, implementations

    other = sorted(implementations(inner) - set(READABLE))
    return f"its attention runs in {other[0]!r}, which gets no mask that says which keys are seen" if other else ""


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what torch.compile gave, or was compiled in place."""
    compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None
    return compiled_in_place or type(module).__name__ == "OptimizedModule"  # torch._dynamo takes seconds to import


def _by_interface(model: PreTrainedModel) -> bool:
    return bool(model._can_set_attn_implementation())


def arguments_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names, without those that are None."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the call itself will say so
        return dict(kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        named |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return {name: value for name, value in named.items() if value is not None}


class CallsTap:
    """Through the attention calls of a module; the first forward is run once more to find them, without gradients."""

    def __init__(self, model: nn.Module, observer: Observer, plans: list[Plan]) -> None:
        self.model, self.observer, self.plans = model, observer, plans
        self.view: PlainView | None = None
        self._open = ExitStack()

    def open(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.view is None:
            plan = plan_of(self.model, args, kwargs, self.plans)
            self.view = PlainView(self.observer, numbered_layers(plan, self.observer))
        self.view.start(arguments_of(module, args, kwargs))
        self._open.enter_context(attention_observed(self.model, self.view))

    def close(self) -> None:
        with torch.no_grad():
            if self.view is not None:
                self.view.finish()
                self.view.last_sum = self.view.waiting = None
            self._open.close()

    def finish(self) -> None:
        self.close()


def plan_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], plans: list[Plan]) -> Plan:
    """The plan of a module: that of its conversion or edits, the one found before, or one from a trial forward."""
    known = known_plan(model)
    if known is not None:
        return known
    if not plans:
        plans.append(find(model, (args, kwargs), run=_call)[0])
    return plans[0]


def _call(model: nn.Module, batch: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    args, kwargs = batch
    return model(*args, **kwargs)


class BesideTap:
    """On a part of the batch, in an eager forward of its own, in evaluation mode and without gradients."""

    def __init__(self, model: nn.Module, observer: Observer, plans: list[Plan]) -> None:
        self.model, self.observer, self.plans = model, observer, plans

    def open(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inner = find_transformers_model(self.model)
        args, kwargs = part_of_batch((args, kwargs), SEQUENCES)
        with torch.no_grad(), quiet_evaluation(self.model):
            if inner is not None and conversion_of(self.model) is None and _by_interface(inner):
                self._run_transformers(inner, arguments_of(module, args, kwargs))
            else:
                tap = CallsTap(self.model, self.observer, self.plans)
                tap.open(module, args, kwargs)
                try:
                    self.model(*args, **kwargs)
                finally:
                    tap.close()

    def _run_transformers(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> None:
        from .huggingface import observed

        with observed(model, self.observer) as run:
            run({name: value for name, value in batch.items() if name != "labels"})

    def close(self) -> None: ...

    def finish(self) -> None: ...


def part_of_batch(value: Any, sequences: int, size: int | None = None) -> Any:
    """The first sequences of a batch: of every tensor in it whose first size is that of the batch."""
    size = _batch_size(value) if size is None else size
    if isinstance(value, Tensor):
        return value[:sequences] if value.dim() and len(value) == size else value
    if isinstance(value, Mapping):
        return {key: part_of_batch(part, sequences, size) for key, part in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(part_of_batch(part, sequences, size) for part in value)
    return value


def _batch_size(value: Any) -> int:
    """The first size of the first tensor with a dimension; 0 without one."""
    if isinstance(value, Tensor):
        return len(value) if value.dim() else 0
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((size for part in parts if (size := _batch_size(part))), 0)
