"""The tap of transformers models: their attention functions, wrapped under their own names while a forward runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from uncollapse.attention.scores import is_weights
from uncollapse.models.huggingface import KEYWORD, NAME, PassScores

from .huggingface import configs_of, eager_function
from .observer import Observer
from .stacks import find_stacks
from .tap import arguments_of
from .tensor_parallel import head_group
from .view import ACTIVE, View

READABLE = ("eager", "sdpa", NAME)  # attention implementations whose arguments say which keys a query sees

_STOCK: dict[str, Any] = {}  # name of a wrapped implementation -> its function, None for "eager", which is the model's
_USERS: dict[str, int] = {}
_CHANGING = threading.Lock()


class InterfaceTap:
    """Hooks on the blocks, and attention functions that report and go on as they are."""

    def __init__(self, model: PreTrainedModel, observer: Observer) -> None:
        self.model, self.observer = model, observer
        self.view = View(observer, find_stacks(model), model.config.is_encoder_decoder, head_group(model))
        self._passes: list[PassScores] = []
        self._open = ExitStack()

    def open(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.view.start(arguments_of(module, args, kwargs))
        self._open.callback(self._release)
        for block in self.view.stack_of:
            for handle in (
                block.register_forward_pre_hook(self._enter_block, with_kwargs=True),
                block.register_forward_hook(self.view.leave_block),
            ):
                self._open.callback(handle.remove)
        self._open.enter_context(_active(self.view))
        self._open.enter_context(_wrapped(implementations(self.model) & {"eager", "sdpa"}))

    def _enter_block(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.view.enter_block(block)
        scores = kwargs.get(KEYWORD)  # of a converted model
        if isinstance(scores, PassScores) and scores.observe is None:
            scores.observe = self.view.inherited
            self._passes.append(scores)

    def _release(self) -> None:
        for scores in self._passes:
            scores.observe = None  # it lives on where checkpointing runs layers again
        self._passes.clear()
        self.view.in_block = False

    def close(self) -> None:
        self._open.close()

    def finish(self) -> None:
        self.close()
        self.view.explain()


def implementations(model: PreTrainedModel) -> set[str]:
    """The attention implementations that a model and its parts name."""
    return {config._attn_implementation for config in configs_of(model) if config._attn_implementation is not None}


@contextmanager
def _active(view: View) -> Iterator[None]:
    ACTIVE.set((*ACTIVE.get(), view))
    try:
        yield
    finally:  # no token: a notebook may stop a forward in one context and close the tap in another
        ACTIVE.set(tuple(other for other in ACTIVE.get() if other is not view))


@contextmanager
def _wrapped(names: set[str]) -> Iterator[None]:
    """Let attention functions report while this is open; another name would change what models and masks do."""
    with _CHANGING:
        for name in names:
            if not _USERS.get(name):
                _STOCK[name] = ALL_ATTENTION_FUNCTIONS.get(name)
                AttentionInterface.register(name, partial(_reporting, name))
            _USERS[name] = _USERS.get(name, 0) + 1
    try:
        yield
    finally:
        with _CHANGING:
            for name in names:
                _USERS[name] -= 1
                if not _USERS[name]:
                    if _STOCK[name] is None:
                        del AttentionInterface._global_mapping[name]
                    else:
                        AttentionInterface.register(name, _STOCK[name])


def _reporting(
    name: str, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *args: Any, **kwargs: Any
) -> Any:
    """Report a call to the taps of this thread, and answer it as it would be answered anyway."""
    own = _STOCK[name] or eager_function(module)
    with torch.no_grad():
        waiting = [view for view in ACTIVE.get() if view.attend(module, q, k, mask, kwargs)]
    result = own(module, q, k, v, mask, *args, **kwargs)
    weights = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    if isinstance(weights, Tensor) and mask is not None and not kwargs.get("dropout") and is_weights(weights):
        for view in waiting:
            view.attend_weights(module, weights.detach(), mask)
    return result
