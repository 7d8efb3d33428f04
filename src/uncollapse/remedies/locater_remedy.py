"""LocAteR as a remedy: its gradient is added before each step of an optimizer, in any training loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from uncollapse.models.convert import transformers_model
from uncollapse.models.families import query_key_parameters

from .locater import add_gradient, check_kappas, locater_penalty
from .remedy import Remedy
from .seen import LayerProof, Seen, distance
from .steps import OTHER_OPTIMIZER, StepHooks, forget_steps, on_steps, steps_of, trains


@dataclass(frozen=True)
class Locater(Remedy):
    """LocAteR in any training loop: the gradient of `locater_penalty` is added before each step of an optimizer.

    In a Hugging Face Trainer use `LocaterCallback`, which also logs the terms.

    Args:
        kappa_scale: weight of tr(W^T W).
        kappa_mean: weight of (tr W - 1)^2.

    >>> import torch, uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> model = uc.apply(model, "locater", kappa_scale=0.01, kappa_mean=0.1, optimizer=optimizer)
    """

    name: ClassVar[str] = "locater"
    needs_optimizer: ClassVar[bool] = True
    kappa_scale: float = 0.01
    kappa_mean: float = 0.1

    def __post_init__(self) -> None:
        check_kappas(self.kappa_scale, self.kappa_mean)
        if self.kappa_scale == 0 and self.kappa_mean == 0:
            raise ValueError("locater with kappa_scale = kappa_mean = 0 does nothing; give one of them.")

    def install(self, model: nn.Module, optimizer: Optimizer | None, example: Any) -> None:
        """Follow the steps of the optimizer."""
        assert optimizer is not None
        inner = transformers_model(model)
        weights = query_key_parameters(inner)  # raises for a model whose weights are not known
        if not any(trains(optimizer, [parameter for layer in weights for parameter in layer])):
            raise ValueError(OTHER_OPTIMIZER)

        def add() -> None:
            add_gradient(inner, self.kappa_scale, self.kappa_mean)

        on_steps(model, self.name, StepHooks(optimizer, before=add))

    def remove(self, model: nn.Module) -> None:
        """Stop adding it."""
        forget_steps(model, self.name)

    def prove(self, model: nn.Module, seen: Seen) -> list[LayerProof]:
        """A row for each layer: the norm of the gradient that is added, and how far it is from that of the penalty."""
        attached = [hooks for hooks in steps_of(model, self.name) if hooks.handles]
        if not attached:
            return [LayerProof(self.name, 1, 0.0, 0.0, note="it follows the steps of no optimizer of this model")]
        inner = transformers_model(model)
        layers = [[p for p in layer if p.requires_grad] for layer in query_key_parameters(inner)]
        added = _added(inner, [p for layer in layers for p in layer], self.kappa_scale, self.kappa_mean)
        table = locater_penalty(inner, self.kappa_scale, self.kappa_mean, reduction="none")  # (N, H)
        rows = []
        for n, parameters in enumerate(layers):
            if not any(trains(attached[0].optimizer, parameters)):
                rows.append(LayerProof(self.name, n + 1, 0.0, 0.0, note="its optimizer does not train W_Q and W_K"))
                continue
            wanted = torch.autograd.grad(table[n].sum(), parameters, retain_graph=True)
            effect = math.sqrt(sum(float(added[p].square().sum()) for p in parameters))
            error = max(distance(added[p], grad) for p, grad in zip(parameters, wanted, strict=True))
            rows.append(LayerProof(self.name, n + 1, effect, error))
        return rows


def _added(model: PreTrainedModel, parameters: list[nn.Parameter], *kappas: float) -> dict[nn.Parameter, Tensor]:
    """What `add_gradient` adds to the gradients of these parameters, which stay as they are."""
    stock = {parameter: parameter.grad for parameter in parameters}
    try:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        add_gradient(model, *kappas)
        return {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
    finally:
        for parameter, grad in stock.items():
            parameter.grad = grad
