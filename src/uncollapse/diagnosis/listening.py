"""Listeners: told when a forward of a model begins and ends, through hooks that cost nothing otherwise.

The hooks are functions of this module and find their listeners in a table beside the model, so that a model that is
listened to can be copied, pickled, converted and compiled; a copy has no listeners.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from uncollapse.models.convert import find_transformers_model
from uncollapse.models.plain import remove_hook

_LISTENERS: weakref.WeakKeyDictionary[nn.Module, list[Listener]] = weakref.WeakKeyDictionary()


class Listener:
    """Hears of every forward of a model by the user, once, whichever of its modules is called.

    The model is not kept alive. Override `entered` and `left`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._roots = [weakref.ref(module) for module in roots_of(model)]
        self._outermost: tuple[nn.Module, int] | None = None  # the module whose forward is under way, and its thread
        self._busy = False  # the listener itself may run the model when it is told
        for module in self._modules():
            if not _LISTENERS.get(module):
                _LISTENERS[module] = []
                module.register_forward_pre_hook(_enter, with_kwargs=True)
                module.register_forward_hook(_leave, with_kwargs=True, always_call=True)
            _LISTENERS[module].append(self)

    @property
    def model(self) -> nn.Module:
        """The model, without a wrapper for data parallelism."""
        model = self._roots[0]()
        if model is None:
            raise RuntimeError("the model that was listened to is gone.")
        return model

    def _modules(self) -> list[nn.Module]:
        return [module for reference in self._roots if (module := reference()) is not None]

    def entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward begins."""

    def left(self, module: nn.Module, output: Any, failed: bool) -> None:
        """It has ended, with an output or by an exception."""

    def dropped(self) -> None:
        """A forward never ended: after Ctrl-C torch calls no hook. Told when the next one begins, or at the end."""

    def stop_listening(self) -> None:
        """Remove the hooks, unless somebody else listens as well."""
        if self._outermost is not None:
            self._outermost = None
            self.dropped()
        for module in self._modules():
            listeners = _LISTENERS.get(module, [])
            if self in listeners:
                listeners.remove(self)
            if not listeners:
                _LISTENERS.pop(module, None)
                remove_hook(module, _enter)
                remove_hook(module, _leave)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        here = threading.get_ident()
        if self._busy:
            return
        if self._outermost is not None:
            if self._outermost[1] != here or self._outermost[0] is not module:
                return  # a part of the forward that is under way, or another thread's
            self.dropped()
        self._outermost, self._busy = (module, here), True
        try:
            self.entered(module, args, kwargs)
        finally:
            self._busy = False

    def _end(self, module: nn.Module, output: Any, failed: bool) -> None:
        if not self._busy and self._outermost is not None and self._outermost == (module, threading.get_ident()):
            self._outermost = None
            self.left(module, output, failed)


def listeners_of(model: nn.Module) -> list[Listener]:
    """Who listens to a model."""
    return list(dict.fromkeys(one for module in roots_of(model) for one in _LISTENERS.get(module, [])))


def roots_of(model: nn.Module) -> list[nn.Module]:
    """The modules that a training loop may call: wrappers such as PEFT's reach past the module they wrap."""
    if isinstance(model, DistributedDataParallel):
        model = model.module
    inner = find_transformers_model(model)
    roots = [model] if inner is None else [model, inner, inner.base_model]
    return list(dict.fromkeys(roots))


def _enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if torch.compiler.is_compiling():
        return  # traced: whoever listens to a compiled module hears of its calls from outside
    for listener in tuple(_LISTENERS.get(module, ())):
        listener._begin(module, args, kwargs)


def _leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    for listener in reversed(_LISTENERS.get(module, [])):
        listener._end(module, output, failed=output is None and sys.exc_info()[0] is not None)
