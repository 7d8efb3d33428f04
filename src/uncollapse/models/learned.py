"""Learned coefficients of a converted model: parameters on its attention modules, and the group they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from uncollapse.attention.rule import ScoreRule

from ._settings import ConversionSettings

PREFIX = "uncollapse"  # of the parameters in an attention module, and so of their names in a checkpoint
MARGIN = 0.05  # how far the sigmoid reaches beyond 0 and 1, so that both are values that can be left again


class LearnedShares(nn.Module):
    """The coefficients of one layer as parameters: alpha' (or ReViT's gate) for each head, alpha for the layer.

    A value is a sigmoid stretched by `MARGIN` on either side and cut off at 0 and 1. A plain sigmoid is never 0, and
    next to 0 has hardly a gradient; this one starts at 0 exactly and has the gradient of its inner end there.
    """

    hidden: nn.Parameter | None  # (H,)
    visible: nn.Parameter | None  # (1,): W_O has mixed the heads where the tokens are added

    def __init__(self, settings: ConversionSettings, heads: int, like: Tensor, inherits: bool) -> None:
        super().__init__()
        self.settings = settings
        rule = settings.rule
        start = rule.take if rule.name == "revit" else rule.keep  # ReViT's gate, or alpha'
        hidden = like.new_full((heads,), raw_value(float(start)))
        visible = like.new_full((1,), raw_value(settings.alpha))
        self.register_parameter("hidden", nn.Parameter(hidden) if rule.learned and inherits else None)
        self.register_parameter("visible", nn.Parameter(visible) if settings.alpha_learned else None)

    def rule(self) -> ScoreRule:
        """The rule of this layer with its present coefficients."""
        rule = self.settings.rule
        if self.hidden is None:
            return replace(rule, learned=False)
        value = share(self.hidden)
        return ScoreRule.revit(value) if rule.name == "revit" else ScoreRule.hopfield(value, rule.start)

    def alpha(self) -> float | Tensor:
        """The weight of the visible skip, (1,) if it is learned."""
        return self.settings.alpha if self.visible is None else share(self.visible)

    def inherited_share(self) -> Tensor | None:
        """How much of its scores each head inherits (H,), if that is learned; gathered if FSDP2 has sharded it."""
        if self.hidden is None:
            return None
        value = share(_whole(self.hidden.detach())).cpu()
        return 1.0 - value if self.settings.rule.name == "revit" else value

    def visible_share(self) -> float | None:
        """The weight of the visible skip, if that is learned."""
        return None if self.visible is None else float(share(_whole(self.visible.detach())))


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def share(raw: Tensor) -> Tensor:
    """The value in [0, 1] of a raw parameter.

    >>> share(torch.tensor([raw_value(0.0), raw_value(0.5), raw_value(1.0)])).tolist()
    [0.0, 0.5, 1.0]
    """
    value = (1.0 + 2.0 * MARGIN) * torch.sigmoid(raw) - MARGIN
    return value + (value.clamp(0.0, 1.0) - value).detach()  # cut off, with the gradient of what is cut


def raw_value(value: float) -> float:
    """The raw parameter whose share is `value`."""
    inner = (value + MARGIN) / (1.0 + 2.0 * MARGIN)
    raw = math.log(inner / (1.0 - inner))
    return raw + 1e-5 * (value == 1.0) - 1e-5 * (value == 0.0)  # so that rounding falls on the side that is cut off


def learned_of(attention: nn.Module) -> LearnedShares | None:
    """The learned coefficients of an attention module, if it has any."""
    found = getattr(attention, PREFIX, None)
    return found if isinstance(found, LearnedShares) else None


def add_learned(attention: nn.Module, settings: ConversionSettings, heads: int, layer: int) -> None:
    """Give the attention module of layer n = 1, 2, ... its parameters, if the settings ask for any."""
    if settings.is_learned:
        inherits = layer > 1 or settings.rule.start == "zero"  # H_1 = S_1 has no coefficient
        like = next(attention.parameters()).detach()
        attention.add_module(PREFIX, LearnedShares(settings, heads, like, inherits))


def remove_learned(attention: nn.Module) -> None:
    """Undo `add_learned`."""
    if learned_of(attention) is not None:
        delattr(attention, PREFIX)


def load_learned(base: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Fill the parameters from a checkpoint; raise if one is not there.

    transformers may save a module under another path than it has, so a parameter is known by the number of its block.
    """
    by_place = {_place(name): tensor for name, tensor in stored.items()}
    for name, parameter in learned_parameters(base):
        found = by_place.get(_place(name))
        if found is None or found.shape != parameter.shape:
            raise ValueError(
                f"the config asks for learned coefficients, and {name} of shape {tuple(parameter.shape)} is not in the "
                "checkpoint; save the whole model, or convert a stock one."
            )
        with torch.no_grad():
            parameter.copy_(found)


def _place(name: str) -> tuple[str, str]:
    """The number of the block and the name of a coefficient: ("3", "hidden") of h.3.attn.uncollapse.hidden."""
    block, _, coefficient = name.rpartition(f".{PREFIX}.")
    return ([part for part in block.split(".") if part.isdigit()] or [""])[-1], coefficient


def learned_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters of all learned coefficients."""
    for name, parameter in model.named_parameters():
        if f".{PREFIX}." in f".{name}":
            yield name, parameter


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, learned_lr: float | None = None
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: learned coefficients apart and without weight decay, which pulls to 0.5.

    Args:
        model: a converted model; without learned coefficients there is one group.
        lr: learning rate of the model's own parameters.
        weight_decay: of the model's own parameters.
        learned_lr: of the learned coefficients; 10 times `lr` if not given, since a sigmoid moves slowly.

    >>> import torch, uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> model = uc.convert(model, alpha="learned", alpha_hidden="learned")
    >>> groups = uc.parameter_groups(model, lr=1e-3, weight_decay=0.1)
    >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
    [(28, 0.001, 0.1), (4, 0.01, 0.0)]
    >>> optimizer = torch.optim.AdamW(groups)
    """
    check_rate("lr", lr)
    check_rate("learned_lr", 10.0 * lr if learned_lr is None else learned_lr)
    apart = {id(parameter) for _, parameter in learned_parameters(model)}
    own = [p for p in model.parameters() if p.requires_grad and id(p) not in apart]
    learned = [p for p in model.parameters() if p.requires_grad and id(p) in apart]
    groups: list[dict[str, Any]] = [{"params": own, "lr": lr, "weight_decay": weight_decay}]
    if learned:
        groups.append({"params": learned, "lr": 10.0 * lr if learned_lr is None else learned_lr, "weight_decay": 0.0})
    return groups


def check_rate(name: str, value: float) -> None:
    """Raise unless a learning rate is a number of at least 0."""
    if not value >= 0.0:
        raise ValueError(f"{name} must be at least 0, got {value}.")
