"""Can a model be converted? Checks of its config, and a trial run for models outside the table of families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.pytorch_utils import Conv1D

from uncollapse.attention.rule import ScoreRule

from ._hooks import add_hooks, remove_hooks
from ._interface import KEYWORD, evaluation, refuse_unknown
from ._settings import ConversionSettings
from .families import FAMILIES, Family, LayerModules, family_of
from .skip_free import SKIP_FREE_KEY

PROBE = "hopfield_probe"  # the attention implementation of the trial run: stock attention that records its caller


class OtherRouteError(ValueError):
    """The attention interface does not serve this model; its attention calls may."""


def check_convertible(model: PreTrainedModel) -> None:
    """Raise a ValueError that names the reason if this kind of model cannot have inherited scores."""
    name, config = type(model).__name__, model.config
    if not model._can_set_attn_implementation():
        raise OtherRouteError(
            f"{name} cannot be converted: its attention does not go through transformers' AttentionInterface."
        )
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        raise ValueError(f"{name} cannot be converted: its cross-attention has other keys than its self-attention.")
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    if len(kinds) > 1:
        raise (ValueError if family_of(model) else OtherRouteError)(
            f"{name} cannot be converted: its layers mix {' and '.join(kinds)}, whose caches hold different keys."
        )
    # what is kept on disk runs where the rest does
    devices = {str(device) for device in getattr(model, "hf_device_map", {}).values()} - {"disk"}
    if len(devices) > 1:
        raise ValueError(f"{name} cannot be converted: it is spread over {', '.join(sorted(devices))}; use one device.")


def check_replaceable(model: PreTrainedModel, family: Family | None) -> None:
    """Raise unless the block's sum of tokens and attention can be replaced exactly, from the output of W_O alone."""
    name = type(model).__name__
    if family is None:
        raise ValueError(f"skip='replace' is for the families {', '.join(FAMILIES)}, not for {name}; use 'stream'.")
    if not family.plain_sum:
        raise ValueError(
            f"skip='replace' cannot be exact in {name}: LayerScale or stochastic depth lies between W_O and the "
            "block's sum; use 'stream'."
        )
    if getattr(model.config, SKIP_FREE_KEY, False):
        raise ValueError(f"skip='replace' needs a residual to replace, and this {name} has none; use 'stream'.")
    rate = getattr(model.config, family.dropout, 0.0) if family.dropout else 0.0
    if rate > 0:
        raise ValueError(
            f"skip='replace' cannot be exact with dropout between W_O and the block's sum: {family.dropout} is {rate}; "
            f"build {name} with {family.dropout}=0, or use 'stream'."
        )


def find_layers(model: PreTrainedModel) -> list[LayerModules]:
    """The attention layers of a model outside the table, found and tested by running it on a tiny batch.

    Each attention module must be called exactly once, get our keyword argument and no unknown one, and be followed by
    its W_O; with alpha = alpha' = 0 the converted model must give the stock output.
    """
    name = type(model).__name__
    with evaluation(model):
        batch = tiny_batch(model)
        stock = _run(model, batch, "its stock forward fails on a tiny batch: ")
        layers = _probe(model, batch)
        settings = ConversionSettings(ScoreRule.hopfield(0.0), alpha=0.0, backend="reference", skip="normed")
        add_hooks(model, settings, layers)
        try:
            converted = _run(model, batch)
        finally:
            remove_hooks(model)
    close = 1e-3 if stock.dtype == torch.float32 else torch.finfo(stock.dtype).eps ** 0.5  # of the largest entry
    if not (converted - stock).abs().max() <= close * stock.abs().max():
        raise OtherRouteError(
            f"{name} cannot be converted: with alpha = alpha_hidden = 0 it does not give its stock output."
        )
    return layers


class _Trial:
    """Record of the trial run: attention modules in the order of their calls, and the linear module after each."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.names = {module: name for name, module in model.base_model.named_modules()}
        self.attentions: list[nn.Module] = []
        self.outputs: list[nn.Module] = []
        self.entering: dict[nn.Module, torch.Size] = {}

    def attend(self, module: nn.Module, kwargs: dict[str, Any]) -> None:
        name = self.names.get(module, type(module).__name__)
        if module in self.attentions:
            raise OtherRouteError(f"{name} runs more than once in a forward pass, so its layers cannot be told apart.")
        if len(self.outputs) < len(self.attentions):
            raise OtherRouteError(f"no output projection was found after {self.names[self.attentions[-1]]}.")
        refuse_unknown(kwargs, name)
        self.attentions.append(module)

    def project(self, linear: nn.Module, result: Tensor) -> None:
        if len(self.outputs) == len(self.attentions):
            return
        attention = self.attentions[-1]
        if self.entering.get(attention) != result.shape:
            raise OtherRouteError(
                f"the output of {self.names[linear]} does not have the shape of what enters the attention."
            )
        self.outputs.append(linear)

    def layers(self) -> Iterator[LayerModules]:
        for attention, output in zip(self.attentions, self.outputs, strict=True):
            parent, _, name = self.names[output].rpartition(".")
            holder = next(module for module, path in self.names.items() if path == parent)
            yield LayerModules(self.names[attention], attention, holder, name, self._block(attention))

    def _block(self, attention: nn.Module) -> nn.Module | None:
        """The innermost element of a ModuleList around the attention, if its input has the shape of the attention's."""
        modules = {path: module for module, path in self.names.items()}
        path = self.names[attention]
        while "." in path:
            parent, _, _ = path.rpartition(".")
            if isinstance(modules.get(parent), nn.ModuleList):
                block = modules[path]
                return block if self.entering.get(block) == self.entering.get(attention) else None
            path = parent
        return None


def _probe(model: PreTrainedModel, batch: dict[str, Tensor]) -> list[LayerModules]:
    trial, base, stock_attention = _Trial(model), model.base_model, model.config._attn_implementation
    handles = [base.register_forward_pre_hook(lambda _, a, k: (a, k | {KEYWORD: trial}), with_kwargs=True)]
    for module in base.modules():
        if isinstance(module, nn.Linear | Conv1D):
            handles.append(module.register_forward_hook(lambda m, _, result: trial.project(m, result)))
        else:
            handles.append(module.register_forward_pre_hook(_note_entering(trial), with_kwargs=True))
    model.set_attn_implementation(PROBE)
    try:
        _run(model, batch)
        if not trial.attentions:
            raise OtherRouteError(
                f"{type(model).__name__} cannot be converted: it never called the attention function."
            )
        if len(trial.outputs) < len(trial.attentions):
            raise OtherRouteError(f"no output projection was found after {trial.names[trial.attentions[-1]]}.")
        return list(trial.layers())
    finally:
        model.set_attn_implementation(stock_attention or "sdpa")
        for handle in handles:
            handle.remove()


def _note_entering(trial: _Trial) -> Any:
    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entering = args[0] if args else kwargs.get("hidden_states")
        if isinstance(entering, Tensor):
            trial.entering[module] = entering.shape

    return note


def _probe_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> Any:
    """Stock attention that reports its caller to the trial run."""
    trial: _Trial | None = kwargs.pop(KEYWORD, None)
    if trial is None:
        raise OtherRouteError(f"{type(module).__name__} does not receive the keyword arguments of its model's forward.")
    trial.attend(module, {k: v for k, v in kwargs.items() if k not in ("dropout", "scaling", "is_causal")})
    return sdpa_attention_forward(module, query, key, value, mask, **kwargs)


def _run(model: PreTrainedModel, batch: dict[str, Tensor], when: str = "") -> Tensor:
    """The model's first output on the batch; any failure becomes a ValueError that names the model."""
    try:
        with torch.no_grad():
            return cast(Tensor, model(**batch)[0])
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise OtherRouteError(f"{type(model).__name__} cannot be converted: {when}{reason}") from error


def tiny_batch(model: PreTrainedModel) -> dict[str, Tensor]:
    """A batch that shows how the model attends."""
    config, device = model.config, model.device
    if model.main_input_name == "input_ids" and hasattr(config, "vocab_size"):
        ids = torch.arange(1, 17, device=device).view(2, 8) * 7 % config.vocab_size
        return {"input_ids": ids}
    if model.main_input_name == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
        generator = torch.Generator().manual_seed(0)
        image = torch.rand(1, getattr(config, "num_channels", 3), *size, generator=generator)
        return {"pixel_values": image.to(device, model.dtype)}
    raise OtherRouteError(
        f"{type(model).__name__} cannot be converted: its input {model.main_input_name!r} is neither plain token ids "
        "nor images, so it cannot be tested."
    )


AttentionInterface.register(PROBE, _probe_attention)
AttentionMaskInterface.register(PROBE, sdpa_mask)
