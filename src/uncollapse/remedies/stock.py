"""Remedies that a model came with: found by their modules, and measured by changing them for one forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from uncollapse.models.convert import find_transformers_model
from uncollapse.models.editing import edited_layer
from uncollapse.models.plain import RunBatch, quiet_evaluation

from .seen import distance, output_of

NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm")
CAP = "attn_logit_softcapping"
SINKS = "sinks"


@dataclass(frozen=True)
class StockRemedy:
    """A remedy of the stock model, and what it changes in each layer."""

    name: str
    where: str
    effects: tuple[float, ...]  # of changing it in one layer, on the output
    implementation: str  # the attention implementation

    @property
    def acts(self) -> bool:
        """Whether it changes what each layer computes."""
        return all(effect > 0 for effect in self.effects)

    def __str__(self) -> str:
        what = f"{self.name} of the model itself ({self.where})"
        if self.acts:
            return f"{what} acts: to change it in one layer moves the output by at least {min(self.effects):.2g}"
        return f"{what} does not act under attention {self.implementation!r}: to change it moves nothing"


def stock_remedies(model: nn.Module, batch: Any, run: RunBatch) -> list[StockRemedy]:
    """What the model came with, measured on a batch."""
    inner = find_transformers_model(model)
    implementation = "its own" if inner is None else str(inner.config._attn_implementation)
    found = []
    for name, where, places in (
        ("qk_norm", "q_norm, k_norm", [_without_norms(m) for m in model.modules() if _has_norms(m)]),
        ("soft_cap", CAP, [_lower_cap(m) for m in model.modules() if getattr(m, CAP, None)]),
        ("sink", SINKS, [_without_sinks(m) for m in model.modules() if _has_sinks(m)]),
    ):
        if places:
            effects = _effects(model, batch, run, places)
            found.append(StockRemedy(name, where, tuple(effects), implementation))
    return found


def _effects(model: nn.Module, batch: Any, run: RunBatch, places: list[Any]) -> Iterator[float]:
    with quiet_evaluation(model):
        stock = output_of(run(model, batch))
        for place in places:
            with place:
                changed = output_of(run(model, batch))
            yield distance(changed, stock)


def _has_norms(module: nn.Module) -> bool:
    return edited_layer(module) is None and any(isinstance(getattr(module, name, None), nn.Module) for name in NORMS)


def _has_sinks(module: nn.Module) -> bool:
    return isinstance(getattr(module, SINKS, None), nn.Parameter)


@contextmanager
def _without_norms(module: nn.Module) -> Iterator[None]:
    """The norms hand on what enters them."""
    norms = [norm for name in NORMS if isinstance(norm := getattr(module, name, None), nn.Module)]
    handles = [norm.register_forward_hook(lambda _, args, __: args[0]) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _lower_cap(module: nn.Module) -> Iterator[None]:
    """A cap that small logits meet, too."""
    stock = getattr(module, CAP)
    setattr(module, CAP, 1e-3 * stock)
    try:
        yield
    finally:
        setattr(module, CAP, stock)


@contextmanager
def _without_sinks(module: nn.Module) -> Iterator[None]:
    """Logits so low that nothing goes to them."""
    sinks: Tensor = getattr(module, SINKS).data
    stock = sinks.clone()
    sinks.fill_(-1e4)
    try:
        yield
    finally:
        sinks.copy_(stock)
