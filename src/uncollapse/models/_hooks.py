"""The hooks that turn a stock model into a converted one, and how they are removed.

A pre-hook on the base model adds a fresh `PassScores` to the keyword arguments, which every block passes on to the
attention function (_interface.py). The visible skip takes two hooks per layer: one keeps the tokens that alpha
multiplies, the other mixes them into the output of W_O. No code is replaced, and no parameter is added unless the
coefficients are learned (learned.py).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from uncollapse.attention.rule import ScoreRule, Skip

from ._interface import KEYWORD, NAME, REENTRANT, PassScores
from ._module_hooks import MARK, remove_hook, running_thread
from ._settings import CONFIG_KEY, ConversionSettings
from .families import LayerModules
from .learned import add_learned, learned_of, remove_learned


class LayerMark:
    """State that the hooks of one layer share: its number, its settings, and the tokens that alpha multiplies."""

    def __init__(self, n: int, name: str, settings: ConversionSettings) -> None:
        self.n, self.name, self.settings = n, name, settings
        self.tokens: dict[int, Tensor] = {}  # by thread, until the output of W_O
        self.alphas: dict[int, float | Tensor] = {}  # of those tokens

    def rule(self, attention: nn.Module) -> ScoreRule:
        """How this layer inherits scores, with its learned coefficients where it has any."""
        learned = learned_of(attention)
        return self.settings.rule if learned is None else learned.rule()

    def note_alpha(self, attention: nn.Module) -> None:
        """Keep a learned alpha for the hook on W_O, which lies outside the attention module in some families."""
        learned = learned_of(attention)
        if learned is not None and self.settings.alpha_learned:
            self.alphas[running_thread()] = learned.alpha()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"tokens": {}, "alphas": {}}  # what a running pass holds does not belong into a copy


class Conversion:
    """What `convert` changed in a model; kept on its base model, so that it can be undone."""

    def __init__(self, settings: ConversionSettings, layers: list[LayerModules], stock_attention: str | None) -> None:
        self.settings, self.layers, self.stock_attention = settings, layers, stock_attention
        self.outputs: list[nn.Module] = []  # the W_O modules that carry a hook
        self.checkpointed: nn.Module | None = None  # a block, to read how gradient checkpointing is set

    def follow_outputs(self) -> None:
        """Put the hook of the visible skip on each W_O, again if an adapter has replaced the module."""
        current = [layer.output for layer in self.layers]
        if len(self.outputs) == len(current) and all(a is b for a, b in zip(self.outputs, current, strict=True)):
            return
        self.release_outputs()
        for layer, output in zip(self.layers, current, strict=True):
            setattr(output, MARK, getattr(layer.attention, MARK))
            output.register_forward_hook(_mix_tokens)
        self.outputs = current

    def release_outputs(self) -> None:
        """Remove the hooks of the visible skip."""
        for output in self.outputs:
            remove_hook(output, _mix_tokens)
            delattr(output, MARK)
        self.outputs = []


CONVERSION = "_hopfield_conversion"  # attribute of the base model


def conversion_of(model: PreTrainedModel) -> Conversion | None:
    """What `convert` changed in this model, or None if it is stock."""
    return getattr(model.base_model, CONVERSION, None)


def add_hooks(model: PreTrainedModel, settings: ConversionSettings, layers: list[LayerModules]) -> None:
    """Give `layers` of the model inherited scores."""
    base = model.base_model
    _refuse_shared(layers, type(model).__name__)  # both may refuse: before anything is changed
    sources = [_skip_source(layer, settings.skip) for layer in layers]
    conversion = Conversion(settings, layers, model.config._attn_implementation)
    for n, (layer, source) in enumerate(zip(layers, sources, strict=True), start=1):
        add_learned(layer.attention, settings, model.config.num_attention_heads, n, model)
        mark = LayerMark(n, layer.name, settings)
        setattr(layer.attention, MARK, mark)
        setattr(source, MARK, mark)
        source.register_forward_pre_hook(_remember_tokens, with_kwargs=True)
    conversion.follow_outputs()
    conversion.checkpointed = next((m for m in base.modules() if isinstance(m, GradientCheckpointingLayer)), None)
    setattr(base, CONVERSION, conversion)
    base.register_forward_pre_hook(_start_pass, with_kwargs=True)
    model.set_attn_implementation(NAME)
    setattr(model.config, CONFIG_KEY, settings.to_config())


def remove_hooks(model: PreTrainedModel) -> None:
    """Undo `add_hooks`; a model that is not converted stays as it is."""
    base = model.base_model
    conversion = conversion_of(model)
    if conversion is None:
        return
    conversion.release_outputs()
    for layer in conversion.layers:
        source = _skip_source(layer, conversion.settings.skip)
        remove_hook(source, _remember_tokens)
        for module in {layer.attention, source}:
            delattr(module, MARK)
        remove_learned(layer.attention)
    remove_hook(base, _start_pass)
    delattr(base, CONVERSION)
    model.set_attn_implementation(conversion.stock_attention or "sdpa")
    delattr(model.config, CONFIG_KEY)


def _refuse_shared(layers: list[LayerModules], model: str) -> None:
    """Raise if a module serves two layers: its hooks could not tell which of them is running."""
    for kind, modules in (
        ("attention", [layer.attention for layer in layers]),
        ("output projection", [layer.output for layer in layers]),
    ):
        first: dict[nn.Module, str] = {}
        for layer, module in zip(layers, modules, strict=True):
            if module in first:
                raise ValueError(
                    f"{model} cannot be converted: {first[module]} and {layer.name} share one {kind}, so its layers "
                    "cannot be told apart; give each layer modules of its own."
                )
            first[module] = layer.name


def _skip_source(layer: LayerModules, skip: Skip) -> nn.Module:
    """The module whose first argument alpha multiplies."""
    if skip == "normed":
        return layer.attention
    if layer.block is None:
        raise ValueError(
            f"skip={skip!r} needs the tokens that enter the block of {layer.name}, and no block was found; "
            "use skip='normed'."
        )
    return layer.block


# The hooks are functions of this module, so that a model with them can be copied and pickled.


def _start_pass(
    base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before the base model runs: add a fresh `PassScores` to the keyword arguments."""
    conversion: Conversion = getattr(base, CONVERSION)
    conversion.follow_outputs()
    _refuse_other_attention(base, conversion.layers[0].attention)
    _refuse_reentrant(conversion.checkpointed)
    scores = PassScores(
        depth=len(conversion.layers),
        keep_all=torch.is_grad_enabled(),
        output_attentions=bool(kwargs.get("output_attentions")),
    )
    return args, kwargs | {KEYWORD: scores}


def _refuse_other_attention(base: nn.Module, attention: nn.Module) -> None:
    """Raise if another attention implementation was set after `convert`: the skip alone would be left of it."""
    config = cast(Any, getattr(attention, "config", base.config))  # all layers share one config
    if config._attn_implementation != NAME:
        raise ValueError(
            f"the attention implementation of this converted {type(base).__name__} was set to "
            f"{config._attn_implementation!r}, which inherits no scores; call set_attn_implementation({NAME!r}), or "
            "uncollapse.restore(model) and set it then."
        )


def _refuse_reentrant(block: nn.Module | None) -> None:
    """Raise if the blocks run under reentrant gradient checkpointing; all blocks share one setting."""
    if block is None or not (block.gradient_checkpointing and block.training):
        return
    function = cast(Any, block._gradient_checkpointing_func)  # functools.partial(checkpoint, use_reentrant=...)
    if function.keywords.get("use_reentrant", True):
        raise ValueError(REENTRANT)


def _remember_tokens(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a block or an attention module runs: keep its tokens for the visible skip."""
    mark: LayerMark = getattr(module, MARK)
    if mark.settings.has_skip:
        mark.tokens[running_thread()] = args[0] if args else kwargs["hidden_states"]


def _mix_tokens(output: nn.Module, args: tuple[Any, ...], result: Tensor) -> Tensor | None:
    """After W_O: alpha x + (1 - alpha) result (Eq. 53); "replace" takes away the x that the block is about to add."""
    mark: LayerMark = getattr(output, MARK)
    alpha: float | Tensor = mark.settings.alpha
    if mark.settings.alpha_learned:
        alpha = mark.alphas.pop(running_thread())
    elif alpha == 0:
        return None
    tokens = mark.tokens.pop(running_thread())
    weight = alpha - 1.0 if mark.settings.skip == "replace" else alpha
    return weight * tokens + (1.0 - alpha) * result
