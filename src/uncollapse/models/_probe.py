"""A trial forward that writes down who feeds whom: calls of modules, projections, attention, sums.

Tensors are not kept. Each gets a number, and carries tags: the projections, products and attention calls that it comes
from with no other projection between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ._attention_call import SDPA
from ._calls import HOPFIELD, MULTIHEAD, PRODUCTS, SOFTMAX, factors, multihead_call
from ._plan import CallKind
from ._torch_internals import without_modes

LINEAR = frozenset({functional.linear, torch.addmm, torch.conv1d, torch.conv2d, functional.conv1d, functional.conv2d})
BY_PARAMETER = PRODUCTS | {torch.mm, Tensor.mm}  # projections as well, if one factor is a parameter
SUMS = frozenset({torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__, Tensor.__radd__})
FOREIGN = ("flex_attention", "flash_attn", "efficient_attention", "memory_efficient")  # in names of other functions


class Identity(NamedTuple):
    """A tensor at one moment: its number, and how often it had been changed in place."""

    number: int
    version: int


class Tag(NamedTuple):
    """Where a tensor comes from: the n-th projection, attention call, product or softmax of the trial."""

    kind: Literal["linear", "attention", "product", "softmax"]
    n: int


Tags = frozenset[Tag]


@dataclass(eq=False)
class ModuleCall:
    """One call of a module."""

    name: str
    module: nn.Module
    parent: ModuleCall | None
    start: int  # on the trial's clock
    arguments: dict[int | str, tuple[Identity, tuple[int, ...]]]  # identity and shape of its floating-point tensors
    end: int = 0
    leaving: tuple[Identity, tuple[int, ...]] | None = None
    products: int = 0  # of two activations, so far
    attentions: list[Attention] = field(default_factory=list)

    def holds(self, clock: int) -> bool:
        """Whether something happened during this call."""
        return self.start <= clock <= self.end


@dataclass(eq=False)
class Projection:
    """One projection by a parameter."""

    clock: int
    call: ModuleCall
    source: Identity
    source_tags: Tags
    content: tuple[Any, ...]  # the same for two tensors of equal content
    weight: Tensor | None
    columns: bool  # the weight is (in, out)
    first: Tensor  # its output for the first token: (out,)


@dataclass(eq=False)
class Attention:
    """One attention call."""

    clock: int
    kind: CallKind
    call: ModuleCall
    shape: tuple[int, int, int, int]  # (B, H, Q, K); heads may be folded into the batch
    q: Tags
    k: Tags
    own: bool | None = None  # known at once for nn.MultiheadAttention
    product: int = 0
    first: tuple[Tensor, Tensor] | None = None  # (H, D), (G, D) of the first token
    scale: float | None = None
    problem: str = ""
    projection: Tensor | None = None  # of nn.MultiheadAttention: W_Q, W_K and W_V, one below the other


@dataclass(eq=False)
class SumCall:
    """One sum of two activations of the same shape."""

    clock: int
    terms: tuple[tuple[Identity, Tags, tuple[int, ...]], ...]


@dataclass(eq=False)
class Product:
    call: ModuleCall
    index: dict[ModuleCall, int]  # how many products each module under way had made before
    q: Tags
    k: Tags
    shape: tuple[int, ...]
    first: tuple[Tensor, Tensor] | None


class Probe(TorchFunctionMode):
    """The record of one trial forward of `model`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.root = ModuleCall("", model, None, 0, {})
        self.stack = [self.root]
        self.calls: list[ModuleCall] = []
        self.linears: list[Projection] = []
        self.attentions: list[Attention] = []
        self.products: list[Product] = []
        self.softmaxes: list[tuple[Tags, tuple[int, ...]]] = []
        self.sums: list[SumCall] = []
        self.drops: list[tuple[Tags, float]] = []  # dropout with a probability above 0: what went in
        self.foreign: list[str] = []
        self._clock = 0
        self._numbers: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._tags: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._count = 0

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def identity(self, tensor: Tensor) -> Identity:
        """The tensor as it is now."""
        if tensor not in self._numbers:
            self._count += 1
            self._numbers[tensor] = self._count
        return Identity(self._numbers[tensor], 0 if tensor.is_inference() else tensor._version)

    def tags(self, *values: Any) -> Tags:
        found: Tags = frozenset()
        for value in values:
            if isinstance(value, Tensor):
                found |= self._tags.get(value, frozenset())  # type: ignore[no-untyped-call]
            elif isinstance(value, list | tuple):
                found |= self.tags(*value)
        return found

    def tag(self, result: Any, tags: Tags) -> Any:
        if isinstance(result, Tensor):
            self._tags[result] = tags
        elif isinstance(result, list | tuple):
            for part in result:
                self.tag(part, tags)
        return result

    # Modules

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with without_modes():
            given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
            arguments = {key: self._seen(value) for key, value in given if _is_activation(value)}
            call = ModuleCall(self.names[module], module, self.stack[-1], self.tick(), arguments)
            self._note_drop(module, args)
        self.stack.append(call)
        self.calls.append(call)

    def leave(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        call = self.stack.pop()
        with without_modes():
            tensor = first_tensor(result)
            call.leaving = None if tensor is None else self._seen(tensor)
        call.end = self.tick()

    def _seen(self, tensor: Tensor) -> tuple[Identity, tuple[int, ...]]:
        return self.identity(tensor), tuple(tensor.shape)

    def _note_drop(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Stochastic depth leaves no call in evaluation mode; its modules are known by their names."""
        rate = getattr(module, "drop_prob", 0.0) if "drop" in type(module).__name__.lower() else 0.0
        if isinstance(rate, float) and rate > 0:
            self.drops.append((self.tags(*args), rate))

    # Functions

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (SDPA, HOPFIELD):
            return self._attention_call(function, *args, **kwargs)
        if function is MULTIHEAD:
            return self._multihead(*args, **kwargs)
        name = str(function)
        self.foreign += [name for word in FOREIGN if word in name][:1]
        values = [*args, *kwargs.values()]
        operands = [(self.identity(v), self.tags(v), tuple(v.shape)) for v in values if _is_activation(v)]
        tags = self.tags(*values)
        result = function(*args, **kwargs)
        if function is Tensor.__setitem__:
            self.tag(args[0], self.tags(args[0]) | tags)
        if not isinstance(result, Tensor):
            return self.tag(result, tags)
        if function in SOFTMAX and result.dim() >= 3:
            self.softmaxes.append((tags, tuple(result.shape)))
            return self.tag(result, frozenset({Tag("softmax", len(self.softmaxes) - 1)}))
        pair = factors(function, args, kwargs)
        weight = next((v for v in _flat(values) if isinstance(v, nn.Parameter) and v.dim() >= 2), None)
        if function in LINEAR or (function in BY_PARAMETER and weight is not None):
            self._count_product(pair)
            return self._linear(function, values, weight, result)
        if pair is not None:
            return self._product(function, args, pair, result)
        if function in SUMS and len(operands) == 2 and operands[0][2] == operands[1][2] == tuple(result.shape):
            self.sums.append(SumCall(self.tick(), tuple(operands)))
        if function is functional.dropout and _probability(args, kwargs) > 0:
            self.drops.append((tags, _probability(args, kwargs)))
        return self.tag(result, tags)

    def _linear(self, function: Any, values: list[Any], weight: Tensor | None, result: Tensor) -> Tensor:
        data = [v for v in _flat(values) if _is_activation(v) and v.dim() >= 2]
        if not data:
            return result
        source = data[0]
        linear = Projection(
            self.tick(),
            self.stack[-1],
            self.identity(source),
            self.tags(source),
            _content(source),
            weight,
            columns=function is not functional.linear,
            first=result.detach().reshape(-1, result.shape[-1])[0].clone() if result.numel() else result.flatten(),
        )
        self.linears.append(linear)
        return self.tag(result, frozenset({Tag("linear", len(self.linears) - 1)}))  # type: ignore[no-any-return]

    def _attention_call(self, function: Any, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        """A call of torch's own attention, or of ours."""
        kind: CallKind = "sdpa" if function is SDPA else "hopfield"
        shape = (*query.shape[:-1], key.shape[-2])
        shape = shape if len(shape) == 4 else (shape[0], 1, *shape[1:])
        first = (query[0, :, 0].clone(), key[0, :, 0].clone()) if query.dim() == key.dim() == 4 else None
        scale = kwargs.get("scale")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        self._attend(
            Attention(
                self.tick(), kind, self.stack[-1], shape, self.tags(query), self.tags(key), first=first, scale=scale
            )
        )
        return self.tag(function(query, key, *args, **kwargs), frozenset({Tag("attention", len(self.attentions) - 1)}))

    def _multihead(self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        problem, shape, scale = "", (query.shape[1], args[2], query.shape[0], key.shape[0]), None
        try:
            call = multihead_call(query, key, *args, **kwargs).call
            shape, scale = (*call.query.shape[:3], call.key.shape[2]), call.query.shape[-1] ** -0.5
        except ValueError as reason:
            problem = str(reason)
        own = key is query or (key.shape == query.shape and torch.equal(key, query))
        self._attend(
            Attention(
                self.tick(),
                "multihead",
                self.stack[-1],
                shape,
                frozenset(),
                frozenset(),
                own,
                scale=scale,
                problem=problem,
                projection=args[3],
            )
        )
        return self.tag(MULTIHEAD(query, key, *args, **kwargs), frozenset({Tag("attention", len(self.attentions) - 1)}))

    def _product(self, function: Any, args: tuple[Any, ...], pair: list[Tensor], result: Tensor) -> Tensor:
        """A product of two activations: attention if one of them comes from a softmax over another product."""
        for weights in (tag.n for tag in sorted(self.tags(pair[0]) | self.tags(pair[1])) if tag.kind == "softmax"):
            source, shape = self.softmaxes[weights]
            made = [self.products[tag.n] for tag in sorted(source) if tag.kind == "product"]
            made = [product for product in made if product.shape == shape]
            if len(made) == 1:
                self._written_out(made[0])
                self._count_product(pair)
                return self.tag(result, frozenset({Tag("attention", len(self.attentions) - 1)}))  # type: ignore[no-any-return]
        q, k = pair
        first = _of_first_token(function, args[0], q, k)
        index = {call: call.products for call in self.stack}
        self.products.append(Product(self.stack[-1], index, self.tags(q), self.tags(k), tuple(result.shape), first))
        self._count_product(pair)
        return self.tag(result, frozenset({Tag("product", len(self.products) - 1)}))  # type: ignore[no-any-return]

    def _written_out(self, made: Product) -> None:
        call = self.stack[-1]
        while call not in made.index:  # the innermost module that holds the product and the sum over the values
            assert call.parent is not None
            call = call.parent
        batch, *heads, queries, keys = made.shape
        shape = (batch, math.prod(heads), queries, keys)
        self._attend(
            Attention(
                self.tick(),
                "product",
                call,
                shape,
                made.q,
                made.k,
                product=made.index[call],
                first=made.first,
            )
        )

    def _count_product(self, pair: list[Tensor] | None) -> None:
        for call in self.stack if pair is not None else ():
            call.products += 1

    def _attend(self, attention: Attention) -> None:
        self.attentions.append(attention)
        call: ModuleCall | None = attention.call
        while call is not None:
            call.attentions.append(attention)
            call = call.parent


@contextmanager
def probing(model: nn.Module) -> Iterator[Probe]:
    """Hooks on every module and a mode over everything, for one forward."""
    probe, handles = Probe(model), []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(probe.enter, with_kwargs=True))
        handles.append(module.register_forward_hook(probe.leave, always_call=True))
    try:
        with probe:
            yield probe
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(value: Any) -> Tensor | None:
    """The first floating-point tensor in what a module gave back."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((found for part in parts if (found := first_tensor(part)) is not None), None)


def _is_activation(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.is_floating_point()


def _flat(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(list(value))
        else:
            yield value


def _probability(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    return float(kwargs.get("p", args[1] if len(args) > 1 else 0.5))


def _of_first_token(function: Any, equation: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor] | None:
    """(H, D) of the first query and of the first key of a product that gives scores (B, H, Q, K)."""
    if q.dim() != 4 or k.dim() != 4:
        return None
    if function is not torch.einsum:
        return q[0, :, 0].clone(), k[0, :, :, 0].clone()
    inputs, _, output = str(equation).replace(" ", "").partition("->")
    left, _, right = inputs.partition(",")
    if not (len(left) == len(right) == len(output) == 4 and left.isalpha() and right.isalpha()):
        return None
    batch = output[0]
    size = set(left) & set(right) - set(output)
    heads = set(left) & set(right) & set(output) - {batch}
    if len(size) != 1 or len(heads) != 1:
        return None
    wanted = heads.pop() + size.pop()
    parts = [
        tensor[tuple(slice(None) if letter in wanted else 0 for letter in letters)]
        for tensor, letters in ((q, left), (k, right))
    ]
    orders = ["".join(letter for letter in letters if letter in wanted) for letters in (left, right)]
    first, second = (part if order == wanted else part.T for part, order in zip(parts, orders, strict=True))
    return first.clone(), second.clone()


def _content(tensor: Tensor) -> tuple[Any, ...]:
    """Sums that two tensors share if their content is the same: two modules may compute one tensor twice."""
    wide = tensor.detach().double()
    return tuple(tensor.shape), float(wide.sum()), float(wide.square().sum())
