"""QK rate: W_Q and W_K learn at a rate of their own, so that logits do not change fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from uncollapse.models.anatomy import Anatomy

from .remedy import Remedy, attention_in
from .seen import LayerProof, Seen
from .soft_cap import check_positive
from .steps import OTHER_OPTIMIZER, StepHooks, followed, forget_steps, on_steps, steps_of, trains
from .weights import HeadRows, local_part, query_key_rows


@dataclass(frozen=True)
class QKRate(Remedy):
    """The learning rate of W_Q and W_K (and their biases) times `factor`.

    Weights of their own move to parameter groups of their own, so give a scheduler the optimizer afterwards;
    `uncollapse.restore` gives the groups their rate back, and a scheduler with a memory of rates is made anew. Where
    queries, keys and values are one parameter, as in GPT-2, no group can hold a part of it: there the update of the
    rows of queries and keys is multiplied by `factor` after each step, which is the same for every optimizer whose
    update is proportional to its learning rate (SGD, Adam, AdamW with its decay, Lion, Muon).

    >>> import torch, uncollapse as uc
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> size = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 16}
    >>> model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **size))
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    >>> model = uc.apply(model, "qk_rate", factor=0.1, optimizer=optimizer)
    >>> [(len(group["params"]), group["lr"]) for group in optimizer.param_groups]
    [(10, 0.01), (2, 0.001)]
    """

    name: ClassVar[str] = "qk_rate"
    needs_optimizer: ClassVar[bool] = True
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_positive("factor", self.factor)
        if self.factor == 1:
            raise ValueError("qk_rate with factor = 1 changes nothing; give another number, such as 0.1.")

    def install(self, model: nn.Module, optimizer: Optimizer | None, example: Any) -> None:
        """Split the groups, or follow the optimizer's steps."""
        assert optimizer is not None
        found = attention_in(model, example)
        rows = [side for pair in query_key_rows(found, self.name) for side in pair]
        if not all(trains(optimizer, [side.weight for side in rows])):
            raise ValueError(OTHER_OPTIMIZER)
        whole = [side for side in rows if side.is_whole]
        if whole:
            _split_groups(optimizer, whole, self.factor)
        parts = [side for side in rows if not side.is_whole]
        if parts:
            update = _PartOfUpdate(found, self.factor)
            on_steps(model, self.name, StepHooks(optimizer, found.plan, update.remember, update.scale, first=True))
        else:
            on_steps(model, self.name, StepHooks(optimizer, found.plan))

    def remove(self, model: nn.Module) -> None:
        """Give the groups the rate of those that they were taken from."""
        for hooks in steps_of(model, self.name):
            for group in hooks.optimizer.param_groups:
                source = group.pop(MARK, 0)
                if source:
                    before = hooks.optimizer.param_groups[source - 1]
                    group.update({key: before[key] for key in ("lr", "initial_lr") if key in before})
        forget_steps(model, self.name)

    def prove(self, model: nn.Module, seen: Seen) -> list[LayerProof]:
        """A row for each layer: how far the rate is from the others', and from the factor."""
        hooks, place = steps_of(model, self.name), followed(model, self.name)
        if place is None:
            return [LayerProof(self.name, 1, 0.0, 0.0, note="it follows the steps of no optimizer of this model")]
        found = []
        for n, pair in enumerate(query_key_rows(place, self.name), start=1):
            rates = [rate for side in pair for one in hooks for rate in _rates(one, side, self.factor)]
            if not rates:
                found.append(LayerProof(self.name, n, 0.0, 0.0, note="no optimizer has W_Q and W_K at this rate"))
            else:
                found.append(LayerProof(self.name, n, abs(1.0 - rates[0]), max(abs(r - self.factor) for r in rates)))
        return found


MARK = "uncollapse_qk_rate"  # in a parameter group: its rate is multiplied


def _rates(hooks: StepHooks, side: HeadRows, factor: float) -> list[float]:
    """The rate of these weights over that of the rest; none if the optimizer does not have them."""
    groups = hooks.optimizer.param_groups
    own = next((g for g in groups if any(p is side.weight for p in g["params"])), None)
    if own is None or (MARK not in own if side.is_whole else not hooks.handles):
        return []
    if not side.is_whole:
        return [factor]
    source = groups[own[MARK] - 1]
    return [own["lr"] / source["lr"] if source["lr"] else factor]


def _split_groups(optimizer: Optimizer, sides: list[HeadRows], factor: float) -> None:
    """Move the weights and biases out of their groups into new ones, whose rate is `factor` times theirs."""
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise ValueError(
            "a scheduler has this optimizer already, and does not know of new groups; apply qk_rate first."
        )
    ours = {id(p) for side in sides for p in (side.weight, side.bias) if p is not None}
    for index, group in enumerate(list(optimizer.param_groups)):
        moved = [p for p in group["params"] if id(p) in ours]
        if moved:
            settings = {key: value for key, value in group.items() if key != "params"}
            group["params"] = [p for p in group["params"] if id(p) not in ours]
            optimizer.add_param_group(settings | {"params": moved, "lr": factor * group["lr"], MARK: index + 1})


class _PartOfUpdate:
    """Multiplies the update of the rows of queries and keys in parameters that hold values, too."""

    def __init__(self, found: Anatomy, factor: float) -> None:
        self.found, self.factor = found, factor
        self.stock: dict[nn.Parameter, Tensor] = {}

    def _factors(self) -> dict[nn.Parameter, Tensor]:
        """Of the entries of each parameter. Looked up each time: sharding replaces parameters."""
        found: dict[nn.Parameter, Tensor] = {}
        for side in (side for pair in query_key_rows(self.found, QKRate.name) for side in pair if not side.is_whole):
            values = torch.full((len(side.rows.starts),), self.factor, dtype=torch.float64, device=side.weight.device)
            for parameter, factors in side.factors(values):
                found[parameter] = factors * found.get(parameter, 1.0)
        return found

    def remember(self) -> None:
        """Before a step: the parameters as they are."""
        self.stock = {parameter: parameter.detach().clone() for parameter in self._factors()}

    @torch.no_grad()
    def scale(self) -> None:
        """After it: the same rows, moved by `factor` times as much, in one pass."""
        for parameter, factors in self._factors().items():
            local_part(parameter).lerp_(local_part(self.stock[parameter]), 1.0 - local_part(factors))
        self.stock.clear()
