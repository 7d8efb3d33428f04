"""The hooks of an edited model: while an attention module runs, a mode hands its attention calls to the edits.

They are functions of this module, so that a model with them can be copied and pickled.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ._attention_call import AttentionCall, attend, weights_of
from ._calls import AttentionCalls, multihead_call
from ._edit import names
from ._edited_layer import EditedLayer, EditedModel
from ._module_hooks import remove_hook, running_thread
from ._projection_edits import edited_side

LAYER, TOKENS = "_uncollapse_edited", "_uncollapse_tokens"  # attributes of modules: the edited layer


class EditingCalls(AttentionCalls):
    """Over one attention module of an edited model."""

    def __init__(self, layer: EditedLayer) -> None:
        super().__init__()
        self.layer, self.calls = layer, 0

    def sdpa(self, call: AttentionCall) -> Tensor:
        if call.query.is_nested or call.query.dim() != 4:
            given = "a nested tensor" if call.query.is_nested else tuple(call.query.shape)
            raise ValueError(f"{self.layer.name}: queries must be (batch, heads, tokens, size), got {given}.")
        return self.layer.edited(call.in_four_dimensions())

    def multihead(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        given = multihead_call(*args, **kwargs)
        if given.weights and self.layer.is_converted:
            raise ValueError(
                f"{self.layer.name}: attention weights cannot be asked for; call it with need_weights=False."
            )
        q, k = given.call.query.transpose(1, 2), given.call.key.transpose(1, 2)  # (B, T, H, D)
        q, k = edited_side(self.layer, "queries", q), edited_side(self.layer, "keys", k)
        ran: list[AttentionCall] = []

        def run(changed: AttentionCall) -> Tensor:
            ran.append(changed)
            return attend(changed)

        out = self.layer.edited(given.call._replace(query=q.transpose(1, 2), key=k.transpose(1, 2)), run)
        return given.finished(out, weights_of(ran[0]).to(out.dtype) if given.weights else None)


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
            f"{layer.name} called scaled_dot_product_attention {mode.calls} times in one forward, so {names(edits)} "
            "would not act as asked; set the attention implementation to 'sdpa', or uncollapse.restore(model)."
        )


def hook(shared: EditedModel) -> None:
    """Add the hooks, after those of a conversion: the mode that is entered last gets a call first."""
    for layer in shared.layers:
        setattr(layer.attention, LAYER, layer)
        setattr(layer.source, TOKENS, layer)
        layer.source.register_forward_pre_hook(remember_tokens, with_kwargs=True)
        layer.attention.register_forward_pre_hook(enter, with_kwargs=True)
        layer.attention.register_forward_hook(leave, always_call=True)
        layer.follow_projections()


def unhook(shared: EditedModel) -> None:
    """Remove the hooks."""
    for layer in shared.layers:
        layer.release_projections()
        for function in (enter, leave):
            remove_hook(layer.attention, function)
        remove_hook(layer.source, remember_tokens)
        for module, attribute in ((layer.attention, LAYER), (layer.source, TOKENS)):
            delattr(module, attribute)
