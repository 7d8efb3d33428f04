"""Learned coefficients of a converted model: parameters on its attention modules, and the group they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from uncollapse.attention.learned import PREFIX, LearnedShares

from ._settings import ConversionSettings

OURS = re.compile(r"(?:^|\.)(uncollapse(?:_\w+)?)\.")  # of a converted model, or of a remedy: uncollapse_sink.


def learned_of(attention: nn.Module) -> LearnedShares | None:
    """The learned coefficients of an attention module, if it has any."""
    found = getattr(attention, PREFIX, None)
    return found if isinstance(found, LearnedShares) else None


def add_learned(attention: nn.Module, settings: ConversionSettings, heads: int, layer: int, model: nn.Module) -> None:
    """Give the attention module of layer n = 1, 2, ... its parameters, if the settings ask for any."""
    if settings.is_learned:
        inherits = layer > 1 or settings.rule.start == "zero"  # H_1 = S_1 has no coefficient
        like = next(chain(attention.parameters(), model.parameters())).detach()  # it may have none of its own
        attention.add_module(PREFIX, LearnedShares(settings, heads, like, inherits))


def remove_learned(attention: nn.Module) -> None:
    """Undo `add_learned`."""
    if learned_of(attention) is not None:
        delattr(attention, PREFIX)


def all_learned(model: nn.Module) -> dict[nn.Module, LearnedShares]:
    """The learned coefficients of every attention module that has any."""
    found = {module: learned_of(module) for module in model.modules()}
    return {module: learned for module, learned in found.items() if learned is not None}


def put_back(kept: Mapping[nn.Module, LearnedShares]) -> None:
    """Give attention modules the coefficients again that `all_learned` found, with what they have learned."""
    for attention, learned in kept.items():
        attention.add_module(PREFIX, learned)


def load_learned(base: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Fill the parameters from a checkpoint; raise if one is not there.

    transformers may save a module under another path than it has, so a parameter is known by the number of its block.
    """
    by_place = {_place(name): tensor for name, tensor in stored.items()}
    for name, parameter in learned_parameters(base):
        found = by_place.get(_place(name))
        if found is None or found.shape != parameter.shape:
            kind = "learned coefficients" if f".{PREFIX}." in name else "a remedy's parameters"
            raise ValueError(
                f"the config asks for {kind}, and {name} of shape {tuple(parameter.shape)} is not in the "
                "checkpoint; save the whole model, or convert a stock one."
            )
        with torch.no_grad():
            parameter.copy_(found)


def _place(name: str) -> tuple[str, str]:
    """The number of the block and what follows: ("3", "uncollapse.hidden") of h.3.attn.uncollapse.hidden."""
    found = OURS.search(name)
    assert found is not None
    block, coefficient = name[: found.start()], name[found.start(1) :]
    return ([part for part in block.split(".") if part.isdigit()] or [""])[-1], coefficient


def is_ours(name: str) -> bool:
    """Whether a parameter of this name was added to a model by `convert` or by a remedy."""
    return OURS.search(name) is not None


def learned_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters of all learned coefficients and of remedies."""
    for name, parameter in model.named_parameters():
        if is_ours(name):
            yield name, parameter


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, learned_lr: float | None = None
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer; what was added to the model has its own, without weight decay.

    There are up to three: the model's own parameters, with the matrices that a remedy has added; learned coefficients
    of a converted model, which decay would pull to 0.5; the numbers of remedies (gains, sinks, mixing coefficients).

    Args:
        model: a model, converted or with remedies; one that is stock has one group.
        lr: learning rate of the model's own parameters, and of remedies.
        weight_decay: of the model's own parameters.
        learned_lr: of the learned coefficients; 10 times `lr` if not given, since a sigmoid moves slowly.

    >>> import torch, uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> model = uc.apply(uc.convert(model, alpha="learned", alpha_hidden="learned"), "qk_norm")
    >>> groups = uc.parameter_groups(model, lr=1e-3, weight_decay=0.1)
    >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
    [(28, 0.001, 0.1), (4, 0.01, 0.0), (4, 0.001, 0.0)]
    >>> optimizer = torch.optim.AdamW(groups)
    """
    check_rate("lr", lr)
    rates = {"own": lr, "learned": 10.0 * lr if learned_lr is None else learned_lr, "remedies": lr}
    check_rate("learned_lr", rates["learned"])
    groups: dict[str, list[nn.Parameter]] = {"own": [], "learned": [], "remedies": []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[_group_of(name, parameter)].append(parameter)
    return [
        {"params": parameters, "lr": rates[kind], "weight_decay": weight_decay if kind == "own" else 0.0}
        for kind, parameters in groups.items()
        if parameters or kind == "own"
    ]


def _group_of(name: str, parameter: nn.Parameter) -> str:
    found = OURS.search(name)
    if found is not None and found.group(1) == PREFIX:
        return "learned"
    return "remedies" if found is not None and parameter.dim() < 2 else "own"


def check_rate(name: str, value: float) -> None:
    """Raise unless a learning rate is a number of at least 0."""
    if not value >= 0.0:
        raise ValueError(f"{name} must be at least 0, got {value}.")
