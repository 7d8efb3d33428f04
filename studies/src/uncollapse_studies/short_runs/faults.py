"""What makes a run fail: six causes that are known because we put them there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .network import SYMBOLS

RATE, WARMUP, SCALE, ROUNDING, CORRUPT, FROZEN = (
    "rate too high",
    "no warm-up",
    "logit scale",
    "bfloat16 scores",
    "corrupt batches",
    "frozen norm",
)
CAUSES = (RATE, WARMUP, SCALE, ROUNDING, CORRUPT, FROZEN)


@dataclass(frozen=True)
class PlantedFault:
    """A cause, the first update that it touches, and its strength.

    The strength is, by cause: the factor of the rate; nothing for a warm-up that is left out; the updates in which the
    scale of the logits doubles; the offset that all scores share before they are rounded; the number of batches that
    are noise; nothing for norms that go on dividing by what they divided by at the onset.
    """

    cause: str
    onset: int = 1
    strength: float = 0.0


@contextmanager
def planted(model: Any, fault: PlantedFault | None) -> Iterator[None]:
    """Put a fault that is in the model into it; `before_update` has those that come with time."""
    with ExitStack() as stack:
        if fault is not None and fault.cause == ROUNDING:
            stack.enter_context(_rounded_scores(model, fault))
        if fault is not None and fault.cause == FROZEN:
            stack.enter_context(_frozen_norms(model, fault))
        yield


def before_update(model: Any, fault: PlantedFault | None, update: int) -> None:
    """What a fault changes before an update."""
    model.update = update  # where hooks find it
    if fault is not None and fault.cause == SCALE and update >= fault.onset:
        for layer in model.model.layers:
            layer.self_attn.scaling *= 2.0 ** (1.0 / fault.strength)


def batch_of(ids: Tensor, fault: PlantedFault | None, update: int, seed: int) -> Tensor:
    """The batch of an update: noise while it is corrupt."""
    if fault is None or fault.cause != CORRUPT or not fault.onset <= update < fault.onset + fault.strength:
        return ids
    return torch.randint(SYMBOLS, ids.shape, generator=torch.Generator().manual_seed(seed * 100_003 + update))


def rate_of(rate: float, warmup: int, fault: PlantedFault | None, update: int) -> float:
    """The learning rate of an update: a linear warm-up, then constant.

    >>> rate_of(0.1, 10, None, 5), rate_of(0.1, 10, PlantedFault(WARMUP), 5)
    (0.05, 0.1)
    """
    if fault is not None and fault.cause == RATE and update >= fault.onset:
        rate *= fault.strength
    if fault is not None and fault.cause == WARMUP:
        return rate
    return rate * min(1.0, update / warmup)


@contextmanager
def _rounded_scores(model: Any, fault: PlantedFault) -> Iterator[None]:
    """Scores share an offset, which a softmax ignores, and are rounded to bfloat16 with it, which it does not."""

    def add_offset(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if model.update < fault.onset:
            return None
        tokens = (args[0] if args else kwargs["hidden_states"]).shape[1]
        hidden = torch.full((tokens, tokens), torch.finfo(torch.float32).min).triu(1)
        return args, kwargs | {
            "attention_mask": (hidden + fault.strength * torch.ones(tokens, tokens).tril())[None, None]
        }

    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    handles = [layer.self_attn.register_forward_pre_hook(add_offset, with_kwargs=True) for layer in model.model.layers]
    AttentionInterface.register("sdpa", _Rounded(stock))
    try:
        yield
    finally:
        AttentionInterface.register("sdpa", stock)
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class _Rounded:
    """Attention whose scores are rounded where a mask adds something to them."""

    stock: Any

    def __call__(self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
        if mask is None:
            return self.stock(module, q, k, v, mask, **kwargs)
        scores = (q @ k.mT * kwargs["scaling"] + mask).bfloat16().float()
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None


@contextmanager
def _frozen_norms(model: Any, fault: PlantedFault) -> Iterator[None]:
    """Norms divide by the root mean square of all tokens at the onset, whatever comes later."""
    norms = [module for name, module in model.named_modules() if name.endswith("norm")]
    frozen: dict[nn.Module, Tensor] = {}

    def divide(norm: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if model.update < fault.onset:
            return None
        size = frozen.setdefault(norm, args[0].detach().square().mean().sqrt())
        result: Tensor = norm.weight * args[0] / size
        return result

    handles = [norm.register_forward_hook(divide) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
