"""Faults planted in a model, of nine kinds, two of them in graded strengths; and changes that do no harm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uncollapse.diagnosis.stacks import find_stacks

CONTRACTION = 0.02  # what is left of the differences between tokens, block by block
Plant = Callable[[Any], list[Any]]  # gives handles of hooks, if it needs any


@dataclass(frozen=True)
class Fault:
    """How a fault is planted in the blocks of a model, and the kind of verdict that names it."""

    plant: Plant
    named: str


@dataclass(frozen=True)
class Series:
    """One fault in strengths: the weak ones show where its verdict begins, the gross ones count as faults."""

    plant: Callable[[float], Plant]
    named: str
    weak: tuple[float, ...]
    counted: tuple[float, ...]
    shows: str  # the column of `quantities.numbers` that says what the fault does

    @property
    def strengths(self) -> tuple[float, ...]:
        """All of them, from weak to gross."""
        return (*self.weak, *self.counted)


def _blocks(model: Any) -> list[nn.Module]:
    """The last stack: the decoder, a tower, the last stage."""
    return list(find_stacks(model).values())[-1]


def _attention(block: nn.Module, *words: str, biases: bool = False) -> list[nn.Parameter]:
    """The weight matrices, and the biases too if asked for, of the self-attention that have one of the words."""
    return [
        parameter
        for path, parameter in block.named_parameters()
        if "att" in path.lower() and any(word in path.lower() for word in words)
        if (parameter.dim() == 2 and path.endswith("weight")) or (biases and path.endswith("bias"))
        if not ("cross" in path.lower() or "encoder_attn" in path.lower() or "encdec" in path)
    ]


QUERY = ("q_proj", "q_lin", "query", "c_attn", "wqkv", "wq.", ".q.")
OUTPUT = ("o_proj", "out_proj", "c_proj", "out_lin", "attn.dense", "attention.dense", ".o.", "wo.", "output.dense")


def _with_softmax(model: Any) -> nn.Module:
    """A block in the middle whose attention has queries; hybrids have blocks without."""
    having = [block for block in _blocks(model) if _attention(block, *QUERY)]
    return having[len(having) // 2]


def _nan(model: Any) -> list[Any]:
    block = _blocks(model)[len(_blocks(model)) // 2]
    next(p for p in block.parameters() if p.dim() > 1).data.view(-1)[0] = math.nan
    return []


def _zero(model: Any) -> list[Any]:
    for parameter in model.parameters():
        parameter.data.zero_()
    return []


def _half_infinite(model: Any) -> list[Any]:
    for parameter in _blocks(model)[-1].parameters():
        parameter.data.fill_(math.inf)
    return []


def _explode(times: float) -> Plant:
    """Queries after their norm, where they have one, and without a cap, which would hold their scores."""

    def plant(model: Any) -> list[Any]:
        block = _with_softmax(model)
        norms = [p for path, p in block.named_parameters() if "q_norm" in path and path.endswith("weight")]
        for parameter in norms or _attention(block, *QUERY):
            added = 1.0 if norms and not parameter.any() else 0.0  # Qwen3-Next's norms add one to their weight
            parameter.data.add_(added).mul_(times).sub_(added)
        for module in block.modules():
            if getattr(module, "attn_logit_softcapping", None) is not None:
                module.attn_logit_softcapping = None  # type: ignore[assignment]
        return []

    return plant


def _silent(model: Any) -> list[Any]:
    for parameter in _attention(_with_softmax(model), *OUTPUT):
        parameter.data.zero_()
    return []


def _blind(model: Any) -> list[Any]:
    for parameter in _attention(_with_softmax(model), *QUERY, biases=True):
        parameter.data.zero_()
    return []


def _contract(share: float) -> Callable[[nn.Module, Any, Any], Any]:
    def hook(_block: nn.Module, _args: Any, output: Any) -> Any:
        tokens: Tensor = output[0] if isinstance(output, tuple) else output
        mean = tokens.mean(dim=1, keepdim=True) + tokens.abs().mean()  # a part that all share, as after a collapse
        alike = mean + share * (tokens - mean)
        return (alike, *output[1:]) if isinstance(output, tuple) else alike

    return hook


def _alike(share: float) -> Plant:
    return lambda model: [_blocks(model)[-1].register_forward_hook(_contract(share))]


def _gradually(model: Any) -> list[Any]:
    return [block.register_forward_hook(_contract(CONTRACTION)) for block in _blocks(model)]


def _two(model: Any) -> list[Any]:
    """A third of the tokens of the last block become its first, the others its last token."""

    def hook(_block: nn.Module, _args: Any, output: Any) -> Any:
        tokens: Tensor = (output[0] if isinstance(output, tuple) else output).clone()
        third = max(1, tokens.shape[1] // 3)
        tokens[:, :third], tokens[:, third:] = tokens[:, :1].clone(), tokens[:, -1:].clone()
        return (tokens, *output[1:]) if isinstance(output, tuple) else tokens

    return [_blocks(model)[-1].register_forward_hook(hook)]


TIMES = (10, 30, 100, 300, 1000, 3000)  # random weights of tiny models have scores of some thousandths
GRADED: dict[str, Series] = {
    "queries of one layer": Series(_explode, "entropy collapse", TIMES, (10_000,), "any_gap"),
    "differences of tokens, last block": Series(
        _alike, "rank collapse", (0.3, 0.1, 0.03), (0.01, 1e-3), "any_residual"
    ),
}
FAULTS: dict[str, Fault] = {
    "NaN in one weight": Fault(_nan, "not finite"),
    "a block of infinite weights": Fault(_half_infinite, "not finite"),
    "all weights zero": Fault(_zero, "dead network"),
    "queries of one layer zero": Fault(_blind, "dead attention"),
    "attention output of one layer zero": Fault(_silent, "dead attention"),
    "tokens contract block by block": Fault(_gradually, "rank collapse"),
    "two tokens in the last block": Fault(_two, "rank collapse"),
}


def _offset(times: float) -> Plant:
    """A coordinate that all tokens share, as trained models have it; not in a block that runs again and again."""

    def hook(_block: nn.Module, _args: Any, output: Any) -> Any:
        tokens: Tensor = (output[0] if isinstance(output, tuple) else output).clone()
        tokens[..., 0] = times * tokens.norm(dim=-1).mean()
        return (tokens, *output[1:]) if isinstance(output, tuple) else tokens

    return lambda model: [_blocks(model)[-1].register_forward_hook(hook)] if len(_blocks(model)) > 1 else []


def _larger_values(model: Any) -> list[Any]:
    """Values three times as large, and an output projection a third as large: the same function."""
    block = _with_softmax(model)
    paths = dict(block.named_parameters())
    values = [path for path in paths if any(f"{word}weight" in path for word in VALUE)]
    for path in values:
        output = next((o for o in paths if any(f"{word}weight" in o for word in PROJECTION)), None)
        if output is None:
            continue
        paths[path].data.mul_(3.0)
        bias = paths.get(path.removesuffix("weight") + "bias")
        if bias is not None:
            bias.data.mul_(3.0)
        paths[output].data.div_(3.0)
    return []


VALUE = ("self_attn.v_proj.", "attention.v_lin.", "attention.self.value.", "SelfAttention.v.", "attention.v_proj.")
PROJECTION: tuple[str, ...] = ("self_attn.o_proj.", "attention.out_lin.", "attention.output.dense.", "SelfAttention.o.")
PROJECTION += ("attention.o_proj.", "self_attn.out_proj.", "self_attn.dense.")


HARMLESS: dict[str, Plant] = {
    "as it is": lambda model: [],
    "one coordinate in common, 3 times as long as the rest": _offset(3.0),
    "one coordinate in common, 12 times as long as the rest": _offset(12.0),
    "values x 3, output / 3": _larger_values,
}


def planted(model: Any, plant: Plant, run: Callable[[Any], Any]) -> Any:
    """What `run` gives for the model with a fault; hooks are removed afterwards, weights stay changed."""
    with torch.no_grad():
        handles = plant(model)
    try:
        return run(model)
    finally:
        for handle in handles:
            handle.remove()
