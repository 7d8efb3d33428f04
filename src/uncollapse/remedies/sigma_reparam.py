"""Sigma-reparam: each weight is gamma W / sigma(W), so that a number, and not the matrix, holds its spectral norm."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from uncollapse.models.anatomy import Anatomy, projection_of
from uncollapse.models.plain import LayerPlan

from ._spectral_product import sigma, spectral_product
from .remedy import Remedy, attention_in
from .seen import LayerProof, Seen

ITERATIONS = 100  # of the power method at the start; then one after each step
SLACK = 0.1  # by which u^T W v may lie below the largest singular value; a random matrix has several near it
_LIVING: weakref.WeakSet[Reparametrised] = weakref.WeakSet()  # those whose u and v follow the steps of optimizers
_HOOKED: list[Any] = []  # the one hook that all optimizers share


class Reparametrised(nn.Module):
    """gamma W / sigma(W) of one weight, with sigma(W) = u^T W v by the power method.

    u and v move after each step of an optimizer and not in a forward, so that checkpointing, which runs a forward
    twice, finds the same weight. A weight that holds queries, keys and values is three matrices, each with its gamma.
    """

    left: Tensor  # u: (parts, out)
    right: Tensor  # v: (parts, in)
    layer: int = 0  # from 1

    def __init__(self, weight: Tensor, parts: int, blocks: int, columns: bool) -> None:
        super().__init__()
        self.parts, self.blocks, self.columns = parts, blocks, columns
        matrices = self._matrices(_whole(weight.detach()))
        self.register_buffer("left", _unit(torch.ones_like(matrices[..., 0])), persistent=False)
        self.register_buffer("right", torch.zeros_like(matrices[:, 0]), persistent=False)
        self.gamma = nn.Parameter(matrices.new_ones(parts))
        self.holder: list[Any] = []  # what keeps W beside this module; in a list, since it is not a part of it
        _LIVING.add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _LIVING.add(self)  # a copy follows its own optimizer

    def forward(self, weight: Tensor) -> Tensor:
        """The weight that the model uses."""
        scaled = spectral_product(self._matrices(weight), self.gamma, self.left, self.right)
        blocks = scaled.unflatten(1, (self.blocks, -1)).transpose(0, 1)  # type: ignore[no-untyped-call]
        joined: Tensor = blocks.flatten(0, 2)
        return joined.T if self.columns else joined

    def right_inverse(self, weight: Tensor) -> Tensor:
        """A weight that is assigned is taken over as it is: gamma becomes its spectral norm."""
        with torch.no_grad():
            self.gamma.copy_(self.settled(weight))
        return weight

    @torch.no_grad()
    def settled(self, weight: Tensor) -> Tensor:
        """The spectral norm of each part of a weight, with u and v moved there."""
        self.iterate(weight, ITERATIONS)
        return sigma(self._matrices(_whole(weight)), self.left, self.right)

    @torch.no_grad()
    def iterate(self, weight: Tensor, times: int = 1) -> None:
        """Move u and v by the power method."""
        matrices = self._matrices(_whole(weight)).to(self.left.dtype)
        for _ in range(times):
            self.right.copy_(_unit((matrices.mT @ self.left.unsqueeze(-1)).squeeze(-1)))
            self.left.copy_(_unit((matrices @ self.right.unsqueeze(-1)).squeeze(-1)))

    def _matrices(self, weight: Tensor) -> Tensor:
        """The parts of a weight: (parts, out, in)."""
        rows = weight.T if self.columns else weight
        split = rows.unflatten(0, (self.blocks, self.parts, -1))  # type: ignore[no-untyped-call]
        matrices: Tensor = split.transpose(0, 1).flatten(1, 2)
        return matrices


def _unit(vectors: Tensor) -> Tensor:
    return functional.normalize(vectors, dim=-1, eps=1e-12)


def _whole(tensor: Tensor) -> Tensor:
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """One power iteration for each weight that the optimizer has moved, in its order, which all processes share."""
    living = {id(holder.original): one for one in _LIVING for holder in one.holder}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in living:
                living[id(parameter)].iterate(parameter.detach())


class Weight(NamedTuple):
    """A weight of a block, and how its matrices lie in it."""

    module: nn.Module
    name: str
    layer: int
    parts: int = 1
    blocks: int = 1  # so many times the parts follow each other
    columns: bool = False  # stored (in, out)


@dataclass(frozen=True)
class SigmaReparam(Remedy):
    """Every linear map W of the blocks becomes gamma W / sigma(W); gamma starts at sigma(W), which is the stock model.

    One power iteration follows each step of any optimizer. A state dict holds the product under the name of the
    weight, so that what is saved is a stock checkpoint, and a stock checkpoint can be loaded: gamma is then its
    spectral norm.

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> names = set(model.state_dict())
    >>> model = uc.apply(model, "sigma_reparam", example=torch.randn(1, 3, 8))
    >>> set(model.state_dict()) == names, len(list(model.parameters())) - len(names)
    (True, 8)
    """

    name: ClassVar[str] = "sigma_reparam"

    def install(self, model: nn.Module, optimizer: Optimizer | None, example: Any) -> None:
        """Parametrise the weights."""
        for weight in list(_weights(attention_in(model, example), type(model).__name__)):
            stock = getattr(weight.module, weight.name)
            one = Reparametrised(stock, weight.parts, weight.blocks, weight.columns)
            one.layer = weight.layer
            parametrize.register_parametrization(weight.module, weight.name, one)
            one.holder.append(weight.module.parametrizations[weight.name])  # type: ignore[index]
            weight.module.register_state_dict_post_hook(fold)  # type: ignore[no-untyped-call]
            weight.module.register_load_state_dict_pre_hook(unfold)  # type: ignore[no-untyped-call]
        if not _HOOKED:
            _HOOKED.append(register_optimizer_step_post_hook(_after_step))

    def remove(self, model: nn.Module) -> None:
        """Leave each weight as the model has used it; bit for bit the stock one, if it was not trained."""
        for module, name, _ in list(reparametrised(model)):
            _give_own_class(module)
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)
            first = module._parameters.pop(name)  # torch puts it last, and optimizers count parameters
            module._parameters = {name: first, **module._parameters}
            for hooks, hook in ((module._state_dict_hooks, fold), (module._load_state_dict_pre_hooks, unfold)):
                for key in [key for key, found in hooks.items() if getattr(found, "hook", found) is hook]:
                    del hooks[key]

    def prove(self, model: nn.Module, seen: Seen) -> list[LayerProof]:
        """A row for each weight: how far the product is from W, and u^T W v from the largest singular value."""
        paths = {module: path for path, module in model.named_modules()}
        rows = []
        for module, name, one in reparametrised(model):
            with torch.no_grad():
                original = _whole(one.holder[0].original).detach().double()
                used = _whole(getattr(module, name)).detach().double()
                matrices = one._matrices(original)
                exact = torch.linalg.matrix_norm(matrices, ord=2)
                found = sigma(matrices, one.left.double(), one.right.double())
            rows.append(
                LayerProof(
                    self.name,
                    one.layer,
                    effect=float((used - original).abs().max() / original.abs().max()),
                    error=float((found / exact - 1.0).abs().max()),
                    gradient=seen.gradient_of([one.gamma]),
                    note=f"{paths[module]}.{name}",
                    allowed=SLACK,
                )
            )
        return rows


def _give_own_class(module: nn.Module) -> None:
    """Torch makes a class for a parametrised module, which its copies share, and takes its property away at the end."""
    shared = type(module)
    own = {key: value for key, value in vars(shared).items() if key not in ("__dict__", "__weakref__")}
    module.__class__ = type(shared.__name__, shared.__bases__, own)


def reparametrised(model: nn.Module) -> Iterator[tuple[nn.Module, str, Reparametrised]]:
    """The weights that are a product: module, name, and how it is made."""
    for module in model.modules():
        if parametrize.is_parametrized(module):
            for name, found in module.parametrizations.items():  # type: ignore[operator, union-attr]
                if isinstance(found[0], Reparametrised):
                    yield module, name, found[0]


def _weights(found: Anatomy, model: str) -> Iterator[Weight]:
    """Every linear map in the blocks, queries, keys and values apart."""
    for n, layer in enumerate(found.layers, start=1):
        around = found.root.get_submodule(layer.block or layer.name)
        for path, module in around.named_modules():
            if hasattr(module, "base_layer"):
                raise ValueError(
                    f"sigma_reparam needs plain weights in {model}, and {layer.block}.{path} is wrapped by an adapter "
                    f"({type(module).__name__}); merge the adapter first."
                )
            if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
                yield Weight(module, "in_proj_weight", n, parts=3)
            elif isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
                if not module.weight.is_floating_point():
                    raise ValueError(f"sigma_reparam needs floating-point weights, and those of {path} are not.")
                yield _of_module(module, f"{layer.block or layer.name}.{path}", layer, n)


def _of_module(module: nn.Module, path: str, layer: LayerPlan, n: int) -> Weight:
    columns = not isinstance(module, nn.Linear)
    query, key = layer.query, layer.key
    if query is None or key is None or projection_of(query) != path or projection_of(key) != path:
        return Weight(module, "weight", n, columns=columns)
    interleaved = key.starts[0] == query.size and len(query.starts) > 1  # each head has its queries, keys and values
    return Weight(module, "weight", n, 3, len(query.starts) if interleaved else 1, columns)


# Hooks of state dicts are functions of this module, so that a model with them can be copied.


def fold(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """In a state dict, the product stands under the weight's own name."""
    for _, name, _one in _own(module):
        place = f"{prefix}parametrizations.{name}."
        if f"{place}original" in state:
            trained = state.pop(f"{place}original"), state.pop(f"{place}0.gamma")
            used = getattr(module, name)
            state[f"{prefix}{name}"] = used if trained[0].requires_grad else used.detach()


def unfold(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
) -> None:
    """A weight of a state dict is taken over: its spectral norm becomes gamma."""
    for _, name, one in _own(module):
        if f"{prefix}{name}" in state:
            weight = state.pop(f"{prefix}{name}")
            place = f"{prefix}parametrizations.{name}."
            state[f"{place}original"] = weight
            state[f"{place}0.gamma"] = one.settled(weight.to(one.left.device))


def _own(module: nn.Module) -> list[tuple[nn.Module, str, Reparametrised]]:
    return [found for found in reparametrised(module) if found[0] is module]
