"""Plan: what was found of the attention in a PyTorch module, as plain data that can be printed and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from ._plan_html import LACKING, plan_html

CallKind = Literal[
    "sdpa",  # torch.nn.functional.scaled_dot_product_attention
    "multihead",  # torch.nn.functional.multi_head_attention_forward, which nn.MultiheadAttention calls
    "product",  # softmax written out: the product of queries and keys is a call of its own
    "hopfield",  # uncollapse.hopfield_attention: scores are inherited already
]
NAMES: dict[CallKind, str] = {
    "sdpa": "scaled_dot_product_attention",
    "multihead": "MultiheadAttention",
    "product": "softmax written out",
    "hopfield": "hopfield_attention",
}


@dataclass(frozen=True)
class Argument:
    """A tensor that a module is called with: the module's path, and the position or the name of the argument."""

    module: str
    key: int | str = 0

    def __str__(self) -> str:
        where = self.module or "the model itself"
        return where if self.key == 0 else f"{where} (argument {self.key!r})"


@dataclass(frozen=True)
class WeightRows:
    """Where the weights of the heads are in a parameter: head h has the rows starts[h], starts[h] + step, ..."""

    parameter: str
    starts: tuple[int, ...]
    size: int  # D
    step: int = 1
    columns: bool = False  # the parameter is stored (in, out), so that its columns are meant


@dataclass(frozen=True)
class LayerPlan:
    """One attention layer: paths of its modules, None for what was not found."""

    name: str  # the module that attends
    kind: CallKind
    heads: int
    product: int = 0  # with kind "product": which product of two activations in the module gives the scores
    block: str | None = None  # what leaves it is the residual stream
    stream: Argument | None = None  # x: the tokens that the block adds the attention's output to
    normed: Argument | None = None  # y: what enters the projections of queries and keys
    output: str | None = None  # W_O
    fits: tuple[str, ...] = ()  # which of "stream" and "normed" have the shape that W_O gives
    query: WeightRows | None = None
    key: WeightRows | None = None
    scale: float | None = None  # of the scores; None where the model multiplies by it itself
    sums: str = ""  # why the block's sum cannot be replaced exactly; empty: it can
    folded: bool = False  # heads are part of the batch: queries are (B H, Q, D)
    tokens_first: bool = False  # x is (tokens, batch, width)
    cross: bool = False  # the keys come from other tokens than the queries


@dataclass(frozen=True)
class Stack:
    """Layers of one kind in the order in which they run; scores are inherited within a stack."""

    name: str  # the path that they share, with # for the numbers
    layers: tuple[LayerPlan, ...]
    refusal: str = ""  # why scores cannot be inherited here; empty: they can

    @property
    def cross(self) -> bool:
        """Whether this is cross-attention, which inherits no scores."""
        return self.layers[0].cross


@dataclass(frozen=True, repr=False)
class Plan:
    """What `convert` and `diagnose` work with; made by `uncollapse.plan(model, example=batch)`."""

    model: str
    stacks: tuple[Stack, ...]
    left_out: tuple[tuple[str, str], ...] = ()  # path, and why nothing is done there

    @property
    def own(self) -> tuple[Stack, ...]:
        """The stacks of self-attention."""
        return tuple(stack for stack in self.stacks if not stack.cross)

    def to_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Plan:
        """The plan that `to_data` wrote, also after JSON made lists of its tuples."""
        try:
            stacks = tuple(
                Stack(s["name"], tuple(_layer(entry) for entry in s["layers"]), s["refusal"]) for s in data["stacks"]
            )
            return cls(data["model"], stacks, tuple((str(path), str(why)) for path, why in data["left_out"]))
        except (KeyError, TypeError, ValueError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"the saved plan is damaged ({reason}); convert the model again.") from None

    def __repr__(self) -> str:
        return str(self)  # what a console shows

    def __str__(self) -> str:
        lines = [f"{self.model}: {_counted(sum(len(s.layers) for s in self.stacks), 'attention layer')}"]
        for stack in self.stacks:
            lines += ["", _title(stack)]
            lines += [f"  cannot inherit scores: {stack.refusal}"] if stack.refusal else []
            lines += [line for n, layer in enumerate(stack.layers, 1) for line in _described(n, layer)]
        lines += ["", "left out:"] if self.left_out else []
        lines += [f"  {path or 'the model itself'}: {why}" for path, why in self.left_out]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            [(str(n), layer.name, *_places(layer).values()) for n, layer in enumerate(stack.layers, 1)]
            for stack in self.stacks
        ]
        return plan_html(self, [_title(stack) for stack in self.stacks], rows)


def _title(stack: Stack) -> str:
    first = stack.layers[0]
    what = "cross-attention, diagnosed and not converted" if stack.cross else NAMES[first.kind]
    return f"{stack.name}: {_counted(len(stack.layers), 'layer')} of {_counted(first.heads, 'head')}, {what}"


def _places(layer: LayerPlan) -> dict[str, str]:
    """Where each part of a layer was found."""
    spectrum = LACKING if layer.query is None or layer.key is None else layer.query.parameter
    if layer.key is not None and layer.query is not None and layer.key.parameter != layer.query.parameter:
        spectrum += f", {layer.key.parameter}"
    return {
        "block": layer.block or "none; the stream is read from the sums",
        "x": str(layer.stream or LACKING),
        "y": str(layer.normed or LACKING),
        "W_O": layer.output or LACKING,
        "W_Q, W_K": spectrum,
    }


def _described(n: int, layer: LayerPlan) -> list[str]:
    return [f"  layer {n}: {layer.name}", *(f"    {key:<9}{value}" for key, value in _places(layer).items())]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _layer(data: Mapping[str, Any]) -> LayerPlan:
    values = dict(data)
    if values.get("kind") not in get_args(CallKind):
        raise ValueError(f"{values.get('kind')!r} is no kind of attention")
    for key in ("stream", "normed"):
        values[key] = None if values[key] is None else Argument(**values[key])
    values["fits"] = tuple(values["fits"])
    for key in ("query", "key"):
        if values[key] is not None:
            values[key] = WeightRows(**(dict(values[key]) | {"starts": tuple(values[key]["starts"])}))
    known = {field.name for field in fields(LayerPlan)}
    if values.keys() - known:
        raise ValueError(f"the unknown field {min(values.keys() - known)!r}")
    return LayerPlan(**values)
