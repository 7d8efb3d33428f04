"""From the record of a trial forward to a Plan: stacks of layers, their blocks, x, y, W_O, W_Q and W_K."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from ._plan import Argument, LayerPlan, Plan, Stack, WeightRows
from ._probe import Attention, ModuleCall, Probe, Projection, Tag

Paths = str | Sequence[str] | None  # a pattern such as "blocks.*.attn", or paths
CROSS = "cross-attention: its keys come from other tokens than its queries"
LONE = "it attends outside any list of blocks"


class Finder:
    """Reads a trial forward."""

    def __init__(self, model: nn.Module, probe: Probe, layers: Paths, blocks: Paths) -> None:
        self.model, self.probe = model, probe
        self.layers, self.blocks = layers, blocks
        self.parameters: dict[Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters(remove_duplicate=False)
        }
        self.left_out: list[tuple[str, str]] = []

    def plan(self) -> Plan:
        """The plan, or a ValueError if no attention was seen."""
        name = type(self.model).__name__
        if not self.probe.attentions:
            raise ValueError(_nothing_seen(name, self.probe.foreign))
        self.left_out += [("", f"it calls {other}, which is not understood") for other in self.probe.foreign[:1]]
        stacks = []
        for group in self._groups().values():
            found = [self._layer(a, group) for a in group]
            path = re.sub(r"\d+", "#", found[0].name) if self.layers is None else ", ".join(_patterns(self.layers))
            refusal = CROSS if found[0].cross else self._refusal(group, found)
            stacks.append(Stack(path, tuple(found), refusal))
        return Plan(name, tuple(stacks), tuple(self.left_out))

    def _refusal(self, group: list[Attention], layers: list[LayerPlan]) -> str:
        """Why the layers of a stack cannot inherit scores from each other, if they cannot."""
        names = [attention.call.name for attention in group]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            return f"{twice} attends more than once in a forward pass, so its layers cannot be told apart"
        other = next((a for a in group if a.shape != group[0].shape), None)
        if other is not None:
            return (
                f"its layers attend over different tokens: {group[0].call.name} has scores of shape {group[0].shape}, "
                f"{other.call.name} of {other.shape}"
            )
        for attention, layer in zip(group, layers, strict=True):
            shape = self._shape_of(layer.stream)
            if shape is not None and not tokens_agree(shape, attention.shape):
                return (
                    f"{layer.name} attends over {attention.shape[0]} groups of {attention.shape[2]} tokens where "
                    f"tokens of shape {shape} enter {layer.stream}, so its queries are not the tokens of the sequence "
                    "(windows?)"
                )
        return ""

    def _shape_of(self, argument: Argument | None) -> tuple[int, ...] | None:
        if argument is None:
            return None
        call = next(call for call in self.probe.calls if call.name == argument.module)
        return call.arguments[argument.key][1]

    def _groups(self) -> dict[tuple[str, bool], list[Attention]]:
        """The attention calls by stack: by the path without its numbers, self-attention apart from cross-attention."""
        if self.layers is not None:
            return {("", False): self._named_layers(_patterns(self.layers))}
        groups: dict[tuple[str, bool], list[Attention]] = {}
        for attention in self.probe.attentions:
            if attention.problem:
                self.left_out.append((attention.call.name, attention.problem))
                continue
            own = self.is_own(attention)
            groups.setdefault((re.sub(r"\d+", "#", attention.call.name), not own), []).append(attention)
        for key, group in list(groups.items()):
            if len(groups) > 1 and len(group) == 1 and not key[1] and "#" not in key[0]:
                self.left_out.append((group[0].call.name, LONE))
                del groups[key]
        return groups

    def _named_layers(self, patterns: list[str]) -> list[Attention]:
        found = [a for a in self.probe.attentions if any(fnmatchcase(a.call.name, p) for p in patterns)]
        for pattern in patterns:
            if not any(fnmatchcase(a.call.name, pattern) for a in found):
                seen = ", ".join(dict.fromkeys(a.call.name for a in self.probe.attentions))
                raise ValueError(f"layers names {pattern!r}, where no attention was seen; it was seen in {seen}.")
        named = set(found)
        self.left_out += [(a.call.name, "layers does not name it") for a in self.probe.attentions if a not in named]
        for attention in found:
            if attention.problem:
                raise ValueError(f"{attention.call.name} cannot be used: {attention.problem}.")
        return found

    # What feeds an attention call

    def is_own(self, attention: Attention) -> bool:
        """Whether queries and keys are projections of the same tokens."""
        return attention.own if attention.own is not None else self._common(attention) is not None

    def _common(self, attention: Attention) -> Projection | None:
        """The projection of the queries whose input the keys are projected from as well, maybe in several steps."""
        q, k = self._projections(attention.q), self._projections(attention.k)
        since = self._before(attention)
        for _ in range(3):
            for linear in q:
                if any(linear.source == other.source or linear.content == other.content for other in k):
                    return linear
            q, k = (self._climbed(linears, since) for linears in (q, k))
        return None

    def _projections(self, tags: frozenset[Tag]) -> list[Projection]:
        return [self.probe.linears[tag.n] for tag in sorted(tags) if tag.kind == "linear"]

    def _climbed(self, linears: list[Projection], since: int) -> list[Projection]:
        """These projections, and those that feed them since the attention before: low-rank queries and keys."""
        above = [up for linear in linears for up in self._projections(linear.source_tags) if up.clock > since]
        return list(dict.fromkeys([*linears, *above]))

    def _before(self, attention: Attention) -> int:
        clocks = [a.clock for a in self.probe.attentions if a.clock < attention.clock]
        return max(clocks, default=0)

    # The layer around it

    def _layer(self, attention: Attention, group: list[Attention]) -> LayerPlan:
        index = len(self.probe.attentions[: self.probe.attentions.index(attention)])
        outputs = self._outputs(attention, index)
        around = self._candidates(attention, group)
        cross = self.layers is None and not self.is_own(attention)
        output = self._output_call(attention, outputs)
        total = None if output is None else self._residual(attention, outputs, output)
        block = self._block(attention, around, group)
        stream = None if total is None else self._stream(total, around, attention)
        if self.blocks is not None and block is not None:
            stream = next((Argument(block.name, key) for key in block.arguments), None)
        normed, shape = self._normed(attention, around)
        leaving = None if output is None or output.leaving is None else output.leaving[1]
        query, key = self._weights(attention)
        x = shape if total is None else total[1]
        heads = _folded_heads(x, attention.shape)
        return LayerPlan(
            name=attention.call.name,
            kind=attention.kind,
            heads=attention.shape[1] * heads,
            product=attention.product,
            block=None if block is None else block.name,
            stream=stream,
            normed=normed,
            output=None if output is None else output.name,
            fits=tuple(
                role
                for role, source, found in (("stream", stream, x), ("normed", normed, shape))
                if source is not None and found is not None and found == leaving
            ),
            query=query,
            key=key,
            scale=attention.scale,
            sums=self._why_not_plain(outputs, output, total, attention),
            folded=heads > 1,
            tokens_first=_tokens_first(x, attention),
            cross=cross,
        )

    def _outputs(self, attention: Attention, index: int) -> list[Projection]:
        """The projections that the attention's output enters directly: W_O, and the first half of an adapter."""
        if attention.kind == "multihead":
            return []
        tag = Tag("attention", index)
        fed = [linear for linear in self.probe.linears if tag in linear.source_tags]
        sums = [s.clock for s in self.probe.sums if any(tag in tags for _, tags, _ in s.terms)]
        return [linear for linear in fed if linear.clock < min(sums, default=linear.clock + 1)]

    def _output_call(self, attention: Attention, outputs: list[Projection]) -> ModuleCall | None:
        """The module whose result is the output of W_O: around an adapter, not inside it."""
        if attention.kind == "multihead":
            return attention.call
        if not outputs:
            return None
        call: ModuleCall | None = outputs[0].call
        while call is not None and not all(call.holds(linear.clock) for linear in outputs):
            call = call.parent
        return call if call is not None and call.end else None

    def _candidates(self, attention: Attention, group: list[Attention]) -> list[ModuleCall]:
        """The modules around the attention, innermost first, that hold no other layer of its stack."""
        found, call = [], attention.call
        while call.parent is not None and len([a for a in call.attentions if a in group]) == 1:
            found.append(call)
            call = call.parent
        return found

    def _residual(
        self, attention: Attention, outputs: list[Projection], output: ModuleCall
    ) -> tuple[object, tuple[int, ...]] | None:
        """The identity and shape of the tokens x that the attention's output is added to."""
        tags = self._result_tags(attention, outputs)
        for total in self.probe.sums:
            if total.clock > output.end:
                ours = [bool(found & tags) for _, found, _ in total.terms]
                if sum(ours) == 1:
                    identity, _, shape = total.terms[ours.index(False)]
                    return identity, shape
                if any(ours):
                    return None
        return None

    def _result_tags(self, attention: Attention, outputs: list[Projection]) -> frozenset[Tag]:
        if attention.kind == "multihead":
            return frozenset({Tag("attention", self.probe.attentions.index(attention))})
        return frozenset(Tag("linear", self.probe.linears.index(linear)) for linear in outputs)

    def _stream(
        self, total: tuple[object, tuple[int, ...]], around: list[ModuleCall], attention: Attention
    ) -> Argument | None:
        """A module that is called with x: the outermost around the attention, else the last one before it."""
        identity, _ = total
        inside = [call for call in self.probe.calls if self._before(attention) < call.start < attention.clock]
        alone = [call for call in inside if not call.attentions]
        for call in (*reversed(around), *reversed(alone)):
            for key, (found, _) in call.arguments.items():
                if found == identity:
                    return Argument(call.name, key)
        return None

    def _normed(self, attention: Attention, around: list[ModuleCall]) -> tuple[Argument | None, tuple[int, ...] | None]:
        """A module that is called with y, and its shape."""
        if attention.kind == "multihead":
            key = next(iter(attention.call.arguments), None)
            return (
                (None, None) if key is None else (Argument(attention.call.name, key), attention.call.arguments[key][1])
            )
        linear = self._common(attention) or next(iter(self._projections(attention.q)), None)
        if linear is None:
            return None, None
        for call in (*around, linear.call):
            for key, (found, shape) in call.arguments.items():
                if found == linear.source:
                    return Argument(call.name, key), shape
        if len(linear.call.arguments) == 1 and not linear.call.attentions:  # it projects a view of its only argument
            ((key, (_, shape)),) = linear.call.arguments.items()
            return Argument(linear.call.name, key), shape
        return None, None

    def _block(self, attention: Attention, around: list[ModuleCall], group: list[Attention]) -> ModuleCall | None:
        """The outermost module around the attention whose result is the residual stream."""
        if self.blocks is not None:
            patterns = _patterns(self.blocks)
            named = [call for call in around if any(fnmatchcase(call.name, pattern) for pattern in patterns)]
            if len(named) != 1:
                raise ValueError(
                    f"blocks must name one module around each layer, and names {len(named)} around "
                    f"{attention.call.name}; the modules around it are {', '.join(c.name for c in around)}."
                )
            return named[0]
        fitting = [
            call for call in around if _keeps_shape(call) and (self._adds_input(call) or self._continues(call, group))
        ]
        numbered = [call for call in fitting if call.name.rpartition(".")[2].isdigit()]
        return next(reversed(numbered or fitting), None)

    def _adds_input(self, call: ModuleCall) -> bool:
        entering = {identity for identity, _ in call.arguments.values()}
        return any(call.holds(s.clock) and any(i in entering for i, _, _ in s.terms) for s in self.probe.sums)

    def _continues(self, call: ModuleCall, group: list[Attention]) -> bool:
        """Whether the next layer starts from what leaves this module."""
        assert call.leaving is not None
        later = [a for a in group if a.clock > call.end][:1]
        return any(
            identity == call.leaving[0]
            for attention in later
            for around in self._candidates(attention, group)
            for identity, _ in around.arguments.values()
        )

    def _why_not_plain(
        self,
        outputs: list[Projection],
        output: ModuleCall | None,
        total: tuple[object, tuple[int, ...]] | None,
        attention: Attention,
    ) -> str:
        """Why alpha x + (1 - alpha) attention cannot take the place of the block's sum, if it cannot."""
        if output is None or total is None or output.leaving is None:
            return "the block's sum was not found"
        tags = self._result_tags(attention, outputs)
        rate = next((rate for found, rate in self.probe.drops if found & tags), 0.0)
        if rate > 0:
            return f"dropout or stochastic depth of {rate} lies between W_O and the block's sum"
        first = next(s for s in self.probe.sums if s.clock > output.end and any(i == total[0] for i, _, _ in s.terms))
        if not any(identity == output.leaving[0] for identity, _, _ in first.terms):
            return "something other than the sum, such as LayerScale or a gate, follows W_O"
        return ""

    # W_Q and W_K

    def _weights(self, attention: Attention) -> tuple[WeightRows | None, WeightRows | None]:
        if attention.kind == "multihead":
            return self._fused_weights(attention)
        if attention.first is None:
            return None, None
        query, key = attention.first
        return self._rows(self._projections(attention.q), query), self._rows(self._projections(attention.k), key)

    def _fused_weights(self, attention: Attention) -> tuple[WeightRows | None, WeightRows | None]:
        if attention.projection is None or attention.projection not in self.parameters:
            return None, None
        name = self.parameters[attention.projection]
        width, heads = attention.projection.shape[1], attention.shape[1]
        size = width // heads
        starts = tuple(range(0, width, size))
        return WeightRows(name, starts, size), WeightRows(name, tuple(start + width for start in starts), size)

    def _rows(self, projections: list[Projection], first: Tensor) -> WeightRows | None:
        """The rows of the weight that made `first` (H, D), found by value.

        At the first position a rotation is none, so that only views and a factor lie between projection and product.
        """
        if len(projections) != 1 or projections[0].weight is None or projections[0].weight not in self.parameters:
            return None
        linear, size = projections[0], first.shape[-1]
        assert linear.weight is not None
        for factor in (1.0, size**-0.5, size**-0.25):
            rows = _matched(linear.first * factor, first)
            if rows is not None:
                step = int(rows[0, 1] - rows[0, 0]) if size > 1 else 1
                expected = rows[:, :1] + step * torch.arange(size)
                if step > 0 and torch.equal(rows, expected):
                    name = self.parameters[linear.weight]
                    return WeightRows(name, tuple(rows[:, 0].tolist()), size, step, linear.columns)
        return None


def _matched(projected: Tensor, first: Tensor) -> Tensor | None:
    """The index (H, D) in `projected` (out,) of each value of `first`; None unless each is there exactly once."""
    equal = first.detach().flatten()[:, None] == projected.to(first.dtype)[None, :]  # (H D, out)
    if not bool((equal.sum(dim=1) == 1).all()):
        return None
    return equal.int().argmax(dim=1).view(first.shape).cpu()


def _folded_heads(shape: tuple[int, ...] | None, queries: Sequence[int]) -> int:
    """How many heads are folded into the batch of queries (B, H, Q, ...), if x has this shape."""
    if shape is None or queries[1] > 1 or len(shape) != 3:
        return 1
    batch = math.prod(shape[:-1]) // max(queries[2], 1)
    return queries[0] // batch if batch and queries[0] % batch == 0 else 1


def _tokens_first(shape: tuple[int, ...] | None, attention: Attention) -> bool:
    """Whether x is (tokens, batch, width); where both are as many, nn.MultiheadAttention says so."""
    if shape is None or len(shape) != 3 or shape[0] != attention.shape[2]:
        return False
    if shape[0] == shape[1]:
        return not getattr(attention.call.module, "batch_first", True)
    return True


def _keeps_shape(call: ModuleCall) -> bool:
    return call.leaving is not None and any(shape == call.leaving[1] for _, shape in call.arguments.values())


def _patterns(paths: Paths) -> list[str]:
    return [paths] if isinstance(paths, str) else list(paths or ())


def _nothing_seen(name: str, foreign: list[str]) -> str:
    if foreign:
        return f"no attention was found in {name}: it calls {foreign[0]}, which hands out no queries and keys."
    return (
        f"no attention was found in {name}: it calls neither scaled_dot_product_attention nor MultiheadAttention, and "
        "no softmax over a product of queries and keys was seen."
    )


def tokens_agree(shape: Sequence[int], queries: Sequence[int]) -> bool:
    """Whether queries (B, H, Q, ...) are the tokens of x, of this shape: not windows of them, nor a part of the batch.

    >>> tokens_agree((2, 9, 16), (2, 4, 9, 4)), tokens_agree((2, 9, 16), (6, 4, 3, 4))
    (True, False)
    """
    count = math.prod(shape[:-1])
    for batch in shape[:2]:  # tokens may come first
        if batch * queries[2] == count and (queries[0] == batch or (queries[1] == 1 and queries[0] % batch == 0)):
            return True  # with one head, heads may be folded into the batch
    return False
