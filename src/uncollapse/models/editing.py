"""Edits: how a remedy changes what an attention layer computes, in any model, without touching its code.

An edit is a small module that hangs below the attention module, so that its parameters are trained, moved and saved
with it. It acts in up to two places. A hook on the projections of queries and keys hands it each head as it leaves
W_Q or W_K, before any rotation. A mode over the attention module hands it the call of
`scaled_dot_product_attention` (or of nn.MultiheadAttention) before and after it runs; calls of a converted model come
from its own attention function. Checkpointing runs both again, because both are hooks of modules inside the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from uncollapse.attention.capped import capped_attention
from uncollapse.attention.reference import masked

from . import _recomputation as recomputation
from . import _torch_internals as internals
from ._calls import SDPA, AttentionCalls, multihead_call, unflattened
from ._inheriting import LAYER as CONVERTED
from ._module_hooks import MARK, remove_hook, running_thread
from .anatomy import Anatomy, projection_of
from .plain import Argument, LayerPlan, WeightRows

REMEDIES_KEY = "uncollapse_remedies"  # where the remedies of a model are written in its config
PREFIX = "uncollapse_"  # of an edit's name in its attention module, and so of its parameters in a checkpoint
LAYER, PROJECTED, TOKENS = "_uncollapse_edited", "_uncollapse_projected", "_uncollapse_tokens"  # attributes of modules


class AttentionCall(NamedTuple):
    """A call of attention, as torch's own function gets it, and what edits add to it."""

    query: Tensor  # (B, H, Q, D)
    key: Tensor  # (B, G, K, D)
    value: Tensor  # (B, G, K, Dv)
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    cap: float | None = None  # scores become cap tanh(scores / cap), before the mask
    sink: Tensor | None = None  # (H,): one more logit in the softmax's sum

    @property
    def grouped(self) -> bool:
        """Whether heads share keys and values."""
        return self.query.shape[1] != self.key.shape[1]

    def with_mask(self) -> AttentionCall:
        """The same call with a mask in place of a causal one over more keys than queries, which torch aligns left."""
        if not self.is_causal or self.query.shape[2] == self.key.shape[2]:
            return self
        size = (self.query.shape[2], self.key.shape[2])
        seen = torch.ones(size, dtype=torch.bool, device=self.query.device).tril()
        return self._replace(attn_mask=seen, is_causal=False)


def attend(call: AttentionCall) -> Tensor:
    """The attention of a call (B, H, Q, Dv): torch's own, unless there is a cap or a sink."""
    q, k, v = call.query, call.key, call.value
    common: dict[str, Any] = {"dropout_p": call.dropout_p, "scale": call.scale, "enable_gqa": call.grouped}
    if call.cap is None and call.sink is None:
        return SDPA(q, k, v, attn_mask=call.attn_mask, is_causal=call.is_causal, **common)
    call = call.with_mask()
    mask = call.attn_mask
    common |= {"cap": call.cap, "sink": call.sink}
    return capped_attention(q, k, v, attn_mask=mask, is_causal=call.is_causal, **common)


def weights_of(call: AttentionCall) -> Tensor:
    """The attention weights of a call (B, H, Q, K), written plainly; where there is a sink, rows sum to less than 1."""
    call = call.with_mask()
    key = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
    scores = scale * call.query @ key.mT
    if call.cap is not None:
        scores = call.cap * torch.tanh(scores / call.cap)
    scores = masked(scores, call.attn_mask, call.is_causal)
    if call.sink is not None:
        column = call.sink.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
    return weights.nan_to_num(0.0)  # a row that sees no key


class Edit(nn.Module):
    """What one remedy does in one attention layer: override the places where it acts, and say so."""

    name = ""  # of the remedy
    at_projections = False  # `queries` and `keys` are overridden
    at_call = False  # `before` or `after` is overridden
    needs_tokens = False  # `after` is to get what enters the attention
    needs_first = False  # `after` is to get the values of layer 1
    inherits = True  # goes with inherited scores, which have an attention function of their own

    def queries(self, heads: Tensor) -> Tensor:
        """Change the queries (..., H, D) as they leave W_Q."""
        return heads

    def keys(self, heads: Tensor) -> Tensor:
        """Change the keys (..., G, D) as they leave W_K."""
        return heads

    def before(self, call: AttentionCall, around: Surroundings) -> AttentionCall:
        """Change the call."""
        return call

    def after(self, out: Tensor, call: AttentionCall, around: Surroundings) -> Tensor:
        """Change what was attended to (B, H, Q, Dv), which enters W_O next; `call` is the one that was run."""
        return out


class Surroundings(NamedTuple):
    """What an edit may need beside the call."""

    tokens: Tensor | None = None  # (B, Q, M): what enters the attention
    first_values: Tensor | None = None  # (B, G, K, Dv): the values of layer 1
    values: Tensor | None = None  # of this layer, before any edit


class Observation(NamedTuple):
    """One call of an edited layer, as `check` sees it."""

    layer: EditedLayer
    edits: list[Edit]
    call: AttentionCall  # before the edits
    out: Tensor  # after them
    around: Surroundings


class EditedModel:
    """What the layers of an edited model share; kept on the root of its plan."""

    def __init__(self, found: Anatomy) -> None:
        self.plan = found.plan
        self.layers: list[EditedLayer] = []
        self.attention: str | None = None  # the implementation that a transformers model had before
        self.notes: dict[str, str] = {}  # what a remedy has to say, by its name
        self.first_values: dict[tuple[int, int], Tensor] = {}  # of layer 1, by thread and stack, until its last layer
        self.observe: Callable[[Observation], None] | None = None
        self.observe_projection: Callable[[EditedLayer, str, Tensor, Tensor], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"first_values": {}, "observe": None, "observe_projection": None}


class ProjectionPlace(NamedTuple):
    """A module that projects queries, keys or both; an adapter may take its place in the module above it."""

    parent: nn.Module
    child: str
    sides: tuple[tuple[str, WeightRows], ...]  # "queries" or "keys", and where they are in its output

    @property
    def module(self) -> nn.Module:
        """The module as it is now."""
        return self.parent.get_submodule(self.child)


class EditedLayer:
    """What the hooks of one layer share."""

    def __init__(self, n: int, place: tuple[int, int, int], plan: LayerPlan, root: nn.Module, shared: EditedModel):
        self.n, self.plan, self.shared = n, plan, shared
        self.stack, self.position, self.depth = place  # which stack, and the place in it from 1
        self.attention = root.get_submodule(plan.name)
        self.projections = _projections(plan, root)
        self.hooked: list[nn.Module] = []  # projections as they were when their hooks were added
        source = plan.normed or Argument(plan.name)
        self.source, self.argument = root.get_submodule(source.module), source.key
        self.modes: dict[int, list[EditingCalls]] = {}
        self.tokens: dict[int, Tensor] = {}  # what enters the attention, by thread

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"modes": {}, "tokens": {}}

    @property
    def name(self) -> str:
        """The path of the attention module."""
        return self.plan.name

    @property
    def edits(self) -> list[Edit]:
        """The edits of this layer in the order in which they were added."""
        return [child for child in self.attention.children() if isinstance(child, Edit)]

    @property
    def width(self) -> int:
        """M: how wide the tokens are that enter the attention; 0 if that was not found."""
        if self.plan.query is None:
            return 0
        weight = self.attention.in_proj_weight if self.plan.kind == "multihead" else self.projections[0].module.weight
        return int(cast(Tensor, weight).shape[0 if self.plan.query.columns else 1])

    @property
    def needs_calls(self) -> bool:
        """Whether the attention calls are to go through the edits."""
        if self.shared.observe is not None or any(edit.at_call for edit in self.edits):
            return True
        return self.plan.kind == "multihead" and bool(self.edits)

    @property
    def is_converted(self) -> bool:
        """Whether the layer inherits scores."""
        return CONVERTED in self.attention.__dict__ or MARK in self.attention.__dict__

    def follow_projections(self) -> None:
        """Put the hooks on the projections, again if an adapter has replaced one."""
        wanted = [p.module for p in self.projections] if any(edit.at_projections for edit in self.edits) else []
        if len(wanted) == len(self.hooked) and all(a is b for a, b in zip(wanted, self.hooked, strict=True)):
            return
        self.release_projections()
        for projection, module in zip(self.projections, wanted, strict=bool(wanted)):
            setattr(module, PROJECTED, (self, projection.sides))
            module.register_forward_hook(edit_projection)
        self.hooked = wanted

    def release_projections(self) -> None:
        """Remove those hooks."""
        for module in self.hooked:
            remove_hook(module, edit_projection)
            delattr(module, PROJECTED)
        self.hooked = []

    def edited(self, call: AttentionCall, run: Callable[[AttentionCall], Tensor] = attend) -> Tensor:
        """The attention of a call with the edits of this layer; `run` attends."""
        for mode in self.modes.get(running_thread(), [])[-1:]:
            mode.calls += 1
        edits = [edit for edit in self.edits if edit.at_call]
        around = Surroundings(self._tokens(edits, call), self._first_values(edits, call.value), call.value)
        changed = call
        for edit in edits:
            changed = edit.before(changed, around)
        out = run(changed)
        for edit in edits:
            out = edit.after(out, changed, around)
        if self.shared.observe is not None:
            self.shared.observe(Observation(self, edits, call, out, around))
        return out

    def _tokens(self, edits: list[Edit], call: AttentionCall) -> Tensor | None:
        tokens = self.tokens.pop(running_thread(), None)
        if tokens is None or not any(edit.needs_tokens for edit in edits):
            return None
        tokens = tokens.transpose(0, 1) if self.plan.tokens_first else tokens
        if tuple(tokens.shape[:-1]) != (call.query.shape[0], call.query.shape[2]):
            raise ValueError(
                f"{self.name} attends over {call.query.shape[0]} sequences of {call.query.shape[2]} tokens, and tokens "
                f"of shape {tuple(tokens.shape)} enter it (windows?); {_names(edits)} need the same tokens."
            )
        return tokens

    def _first_values(self, edits: list[Edit], value: Tensor) -> Tensor | None:
        """The values of layer 1, also when checkpointing runs this layer again."""
        if not any(edit.needs_first for edit in edits):
            return None
        if self.position == 1:
            if not self._again():
                self.shared.first_values[running_thread(), self.stack] = value
            return value
        found = self._first_again() if self._again() else self._first_now()
        if found.shape[:3] != value.shape[:3]:
            raise ValueError(
                f"{self.name} has values of shape {tuple(value.shape)} and layer 1 {tuple(found.shape)}; mixing in the "
                "values of layer 1 needs the same heads and tokens in every layer."
            )
        return found

    def _again(self) -> bool:
        """Whether this is a recomputation."""
        if torch.compiler.is_compiling():
            return False
        region = internals.current_region()
        return internals.in_backward() or (region is not None and region.again)

    def _first_now(self) -> Tensor:
        place = (running_thread(), self.stack)
        if place not in self.shared.first_values:
            raise ValueError(f"{self.name} ran without layer 1, whose values it mixes in; call the whole model.")
        found = self.shared.first_values[place]
        if self.position == self.depth:
            del self.shared.first_values[place]
        if not torch.compiler.is_compiling():
            region = internals.current_region()
            if region is not None and torch.is_grad_enabled():
                recomputation.keep(region, (id(self.shared), self.n), found)
        return found

    def _first_again(self) -> Tensor:
        known, found = recomputation.kept(internals.current_region(), (id(self.shared), self.n))
        if not known:
            raise ValueError(
                f"{self.name}: mixing in the values of layer 1 under reentrant or nested gradient checkpointing would "
                "give wrong gradients; call checkpoint(..., use_reentrant=False), once around each block."
            )
        assert isinstance(found, Tensor)
        return found


def _projections(plan: LayerPlan, root: nn.Module) -> list[ProjectionPlace]:
    """The modules that project queries and keys; none where the call projects by itself, or where none was found."""
    if plan.kind == "multihead" or plan.query is None or plan.key is None:
        return []
    sides = (("queries", plan.query), ("keys", plan.key))
    found = []
    for path in dict.fromkeys(projection_of(rows) for _, rows in sides):
        parent, _, child = path.rpartition(".")
        own = tuple((side, rows) for side, rows in sides if projection_of(rows) == path)
        found.append(ProjectionPlace(root.get_submodule(parent), child, own))
    return found


def _names(edits: list[Edit]) -> str:
    return ", ".join(edit.name for edit in edits)


class EditingCalls(AttentionCalls):
    """Over one attention module of an edited model."""

    def __init__(self, layer: EditedLayer) -> None:
        super().__init__()
        self.layer, self.calls = layer, 0

    def sdpa(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if query.is_nested or query.dim() != 4:
            given = "a nested tensor" if query.is_nested else tuple(query.shape)
            raise ValueError(f"{self.layer.name}: queries must be (batch, heads, tokens, size), got {given}.")
        if attn_mask is not None and attn_mask.dim() < 4:
            attn_mask = attn_mask.view((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
        return self.layer.edited(AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, scale))

    def multihead(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        given = multihead_call(*args, **kwargs)
        if given.weights and self.layer.is_converted:
            raise ValueError(
                f"{self.layer.name}: attention weights cannot be asked for; call it with need_weights=False."
            )
        q, k = given.q.transpose(1, 2), given.k.transpose(1, 2)  # (B, T, H, D)
        q, k = _changed(self.layer, "queries", q), _changed(self.layer, "keys", k)
        call = AttentionCall(
            q.transpose(1, 2), k.transpose(1, 2), given.v, given.attn_mask, given.dropout_p, given.is_causal
        )
        ran: list[AttentionCall] = []

        def run(changed: AttentionCall) -> Tensor:
            ran.append(changed)
            return attend(changed)

        out = self.layer.edited(call, run)
        return given.finished(out, weights_of(ran[0]).to(out.dtype) if given.weights else None)


# The hooks are functions of this module, so that a model with them can be copied and pickled.


def remember_tokens(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before the module that gets what enters the attention: keep it."""
    layer: EditedLayer = getattr(module, TOKENS)
    if any(edit.needs_tokens for edit in layer.edits):
        key = layer.argument
        value = args[key] if isinstance(key, int) and key < len(args) else kwargs.get(str(key))
        value = kwargs.get("hidden_states") if value is None else value  # what transformers calls it
        if value is None:
            raise ValueError(f"{layer.name}: {type(module).__name__} was called with other arguments than expected.")
        layer.tokens[running_thread()] = value


def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before an attention module runs: its attention calls go through the edits."""
    layer: EditedLayer = getattr(module, LAYER)
    layer.follow_projections()
    if not layer.needs_calls:
        return
    mode = EditingCalls(layer)
    layer.modes.setdefault(running_thread(), []).append(mode)
    mode.__enter__()  # type: ignore[no-untyped-call]


def leave(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
    """After it, or after an error in it."""
    layer: EditedLayer = getattr(module, LAYER)
    modes = layer.modes.get(running_thread())
    if not modes:
        return  # none was needed, or a hook before ours has raised
    mode = modes.pop()
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    edits = [edit for edit in layer.edits if edit.at_call]
    if result is not None and edits and mode.calls != 1:
        raise ValueError(
            f"{layer.name} called scaled_dot_product_attention {mode.calls} times in one forward, so {_names(edits)} "
            "would not act as asked; set the attention implementation to 'sdpa', or uncollapse.restore(model)."
        )


def edit_projection(module: nn.Module, args: tuple[Any, ...], result: Tensor) -> Tensor:
    """After W_Q, W_K or a module with both: the edits get each head."""
    layer, sides = getattr(module, PROJECTED)
    pieces, reached = [], 0
    if not all(_in_one_piece(rows) for _, rows in sides):
        return _edited_rows(layer, sides, result)
    for side, rows in sorted(sides, key=lambda pair: pair[1].starts[0]):
        start, stop = rows.starts[0], rows.starts[0] + rows.size * len(rows.starts)
        pieces += [result[..., reached:start], _edited_heads(layer, side, result[..., start:stop], rows.size)]
        reached = stop
    pieces = [piece for piece in (*pieces, result[..., reached:]) if piece.shape[-1]]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


def _in_one_piece(rows: WeightRows) -> bool:
    return rows.step == 1 and rows.starts == tuple(rows.starts[0] + rows.size * h for h in range(len(rows.starts)))


def _edited_rows(layer: EditedLayer, sides: tuple[tuple[str, WeightRows], ...], result: Tensor) -> Tensor:
    """The same where the rows of a side do not lie side by side."""
    for side, rows in sides:
        places = [start + rows.step * d for start in rows.starts for d in range(rows.size)]
        index = torch.tensor(places, device=result.device)
        result = result.index_copy(-1, index, _edited_heads(layer, side, result.index_select(-1, index), rows.size))
    return result


def _edited_heads(layer: EditedLayer, side: str, projected: Tensor, size: int) -> Tensor:
    return _changed(layer, side, unflattened(projected, -1, (-1, size))).flatten(-2)


def _changed(layer: EditedLayer, side: str, heads: Tensor) -> Tensor:
    """Queries or keys (..., H, D) after the edits."""
    changed = heads
    for edit in layer.edits:
        changed = edit.queries(changed) if side == "queries" else edit.keys(changed)
    if layer.shared.observe_projection is not None:
        layer.shared.observe_projection(layer, side, heads, changed)
    return changed


EDITED = "_uncollapse_edited_model"  # attribute of the root of the plan


def edited_model(model: nn.Module) -> EditedModel | None:
    """What was edited in this model or in one inside it, None if nothing was."""
    return next((module.__dict__[EDITED] for module in model.modules() if EDITED in module.__dict__), None)


def edited_layer(attention: nn.Module) -> EditedLayer | None:
    """What the hooks of an attention module share, None if it is not edited."""
    found = attention.__dict__.get(LAYER)
    return found if isinstance(found, EditedLayer) else None


def begin_editing(found: Anatomy) -> EditedModel:
    """Put the hooks on every attention layer; they do nothing until an edit is added."""
    shared = EditedModel(found)
    n = 0
    for index, stack in enumerate(found.plan.own):
        for position, plan in enumerate(stack.layers, start=1):
            n += 1
            shared.layers.append(EditedLayer(n, (index, position, len(stack.layers)), plan, found.root, shared))
    setattr(found.root, EDITED, shared)
    hook(shared)
    return shared


def hook(shared: EditedModel) -> None:
    """Add the hooks, after those of a conversion: the mode that is entered last gets a call first."""
    for layer in shared.layers:
        setattr(layer.attention, LAYER, layer)
        setattr(layer.source, TOKENS, layer)
        layer.source.register_forward_pre_hook(remember_tokens, with_kwargs=True)
        layer.attention.register_forward_pre_hook(enter, with_kwargs=True)
        layer.attention.register_forward_hook(leave, always_call=True)


def unhook(shared: EditedModel) -> None:
    """Remove the hooks."""
    for layer in shared.layers:
        layer.release_projections()
        for function in (enter, leave):
            remove_hook(layer.attention, function)
        remove_hook(layer.source, remember_tokens)
        for module, attribute in ((layer.attention, LAYER), (layer.source, TOKENS)):
            delattr(module, attribute)


def refuse_inheriting(model: nn.Module) -> None:
    """Raise if an edit of the model does not go with inherited scores."""
    shared = edited_model(model)
    edits = [] if shared is None else [edit for layer in shared.layers for edit in layer.edits]
    other = next((edit for edit in edits if not edit.inherits), None)
    if other is not None:
        raise ValueError(
            f"hopfield does not go with {other.name}: inherited scores have an attention function of their own; "
            "uncollapse.restore(model) first."
        )


@contextmanager
def hooks_last(model: nn.Module) -> Iterator[None]:
    """Take the hooks off while a conversion adds its own, and put them behind those."""
    shared = edited_model(model)
    if shared is not None:
        unhook(shared)
    try:
        yield
    finally:
        if shared is not None:
            hook(shared)


def end_editing(model: nn.Module) -> None:
    """Undo `begin_editing` and take every edit away; a model that is not edited stays as it is."""
    for module in list(model.modules()):
        shared = module.__dict__.get(EDITED)
        if shared is not None:
            unhook(shared)
            for layer in shared.layers:
                for edit in layer.edits:
                    remove_edit(layer, edit)
            delattr(module, EDITED)


def add_edit(layer: EditedLayer, edit: Edit) -> None:
    """Add an edit to a layer; it acts after those that are there."""
    layer.attention.add_module(PREFIX + edit.name, edit)
    layer.follow_projections()  # here, because a graph that is being compiled cannot add hooks


def remove_edit(layer: EditedLayer, edit: Edit) -> None:
    """Take an edit away."""
    delattr(layer.attention, PREFIX + edit.name)
