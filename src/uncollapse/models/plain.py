"""Any PyTorch module, converted through its attention calls: a trial forward finds them, hooks change them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from uncollapse.attention.rule import ScoreRule

from ._attention_call import AttentionCall
from ._calls import AttentionCalls, multihead_call, unflattened
from ._finding import Finder, Paths
from ._inheriting import LAYER, SOURCES, PlainLayerMark, StackState, enter, leave, remember
from ._module_hooks import remove_hook
from ._plan import Argument, LayerPlan, Plan, Stack, WeightRows
from ._probe import SUMS, first_tensor, probing
from ._settings import ConversionSettings
from ._torch_internals import in_backward, without_modes
from .learned import add_learned, all_learned, put_back, remove_learned

__all__ = [
    "SUMS",
    "Argument",
    "AttentionCall",
    "AttentionCalls",
    "LayerPlan",
    "NotUnderstoodError",
    "Paths",
    "PlainConversion",
    "Plan",
    "RunBatch",
    "Stack",
    "WeightRows",
    "change_alpha",
    "conversion_of",
    "find",
    "first_tensor",
    "in_backward",
    "install",
    "multihead_call",
    "on_device_of",
    "quiet_evaluation",
    "remove_hook",
    "run_batch",
    "unflattened",
    "uninstall",
    "without_modes",
]

RunBatch = Callable[[Any, Any], Any]  # run(model, batch) calls the model
CONVERSION = "_uncollapse_conversion"  # attribute of the converted module
NO_EXAMPLE = (
    "{} is no transformers model, so its attention is found by running it: give a batch as example= "
    "(a dict for keywords, a tuple for positions, a tensor for one argument)."
)


class NotUnderstoodError(ValueError):
    """The trial forward did not show what inheriting scores needs."""


class PlainConversion:
    """What `install` changed in a module."""

    def __init__(self, settings: ConversionSettings, plan: Plan) -> None:
        self.settings, self.plan = settings, plan
        self.stacks: list[StackState] = []
        self.marks: list[PlainLayerMark] = []
        self.sources: list[nn.Module] = []  # modules whose arguments are remembered
        self.attentions: list[nn.Module] = []
        self.encoders: list[nn.Module] = []  # whose nested tensors are switched off


def run_batch(model: Any, batch: Any) -> Any:
    """Call a model with a batch: a dict gives keywords, a tuple or list positions, anything else one argument."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def on_device_of(model: nn.Module, batch: Any) -> Any:
    """The batch with its tensors on the device of the model's first parameter."""
    device = next((p.device for p in model.parameters() if p.device.type != "meta"), None)

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if device is None else value.to(device)
        if isinstance(value, Mapping):
            return {key: moved(part) for key, part in value.items()}
        if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
            return type(value)(moved(part) for part in value)
        return value

    return moved(batch)


@contextmanager
def quiet_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, compilation or nested tensors; afterwards everything is as before."""
    training = {module: module.training for module in model.modules()}
    nested = _without_nested_tensors(model)
    devices = sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices), torch.compiler.set_stance("force_eager"):
            model.train(False)
            yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for encoder in nested:
            encoder.use_nested_tensor = True  # type: ignore[assignment]


def _without_nested_tensors(model: nn.Module) -> list[nn.Module]:
    """Switch off the nested tensors of nn.TransformerEncoder, which hold no scores; the modules that had them on."""
    found = [m for m in model.modules() if isinstance(m, nn.TransformerEncoder) and m.use_nested_tensor]
    for encoder in found:
        encoder.use_nested_tensor = False
    return list(found)


def find(
    model: nn.Module, example: Any, run: RunBatch | None = None, layers: Paths = None, blocks: Paths = None
) -> tuple[Plan, list[Tensor]]:
    """The plan of a module, from one forward on `example`, and what that forward gave."""
    if example is None:
        raise ValueError(NO_EXAMPLE.format(type(model).__name__))
    with quiet_evaluation(model), probing(model) as probe:
        result = _run(model, example, run)
    return Finder(model, probe, layers, blocks).plan(), _tensors(result)


def _run(model: nn.Module, batch: Any, run: RunBatch | None) -> Any:
    """What the model gives; an error of its own code becomes a sentence."""
    try:
        return (run or run_batch)(model, on_device_of(model, batch))
    except ValueError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{type(model).__name__} cannot be run on this batch: {type(error).__name__}: {reason}"
        ) from error


def install(
    model: nn.Module,
    settings: ConversionSettings,
    example: Any = None,
    run: RunBatch | None = None,
    layers: Paths = None,
    blocks: Paths = None,
    plan: Plan | None = None,
) -> None:
    """Convert the module, or raise a ValueError that says why it cannot be; then it is as before.

    With a `plan` no forward runs; without one the converted module must give the stock output at alpha = alpha' = 0.
    """
    before, kept = conversion_of(model), all_learned(model)
    uninstall(model)
    try:
        stock = None
        if plan is None:
            plan, stock = find(model, example, run, layers, blocks)
        check(plan, settings)
        _add_hooks(model, settings, plan)
        if stock is not None:
            _check_stock(model, stock, example, run)
    except BaseException:
        uninstall(model)
        if before is not None:
            _add_hooks(model, before.settings, before.plan)
            put_back(kept)
        raise


def check(plan: Plan, settings: ConversionSettings) -> None:
    """Raise a ValueError if the plan does not allow these settings."""
    cannot = f"{plan.model} cannot be converted: "
    if not plan.own:
        seen = [(stack.layers[0].name, stack.refusal) for stack in plan.stacks] + list(plan.left_out)
        path, why = next(iter(seen), ("", "nothing attends"))
        raise NotUnderstoodError(f"{cannot}no self-attention was found; {path or 'the model itself'}: {why}.")
    foreign = next((why for path, why in plan.left_out if not path), None)
    if foreign is not None:
        raise NotUnderstoodError(f"{cannot}{foreign}.")
    for stack in plan.own:
        if stack.refusal:
            raise NotUnderstoodError(f"{cannot}{stack.refusal}.")
        for layer in stack.layers:
            if layer.kind == "hopfield":
                raise ValueError(
                    f"{cannot}{layer.name} inherits scores already; change alpha and alpha' with uncollapse.set_alpha."
                )
            if settings.has_skip:
                _check_skip(layer, settings, cannot)
            if settings.rule.learned and layer.folded:
                raise ValueError(
                    f"{cannot}the heads of {layer.name} are part of its batch, so they cannot learn coefficients of "
                    "their own; give alpha_hidden a number."
                )
            if settings.scores_dtype == "float16" and layer.kind == "product":
                raise ValueError(
                    f"{cannot}{layer.name} writes its softmax out and keeps its scores as they are; "
                    "leave out scores_dtype."
                )


def _check_skip(layer: LayerPlan, settings: ConversionSettings, cannot: str) -> None:
    if layer.output is None:
        raise NotUnderstoodError(f"{cannot}no output projection was found after {layer.name}; use alpha=0.")
    normed = settings.skip == "normed"
    if ("normed" if normed else "stream") not in layer.fits:
        hint = f"skip={layer.fits[0]!r}" if layer.fits else "alpha=0"
        what = "what enters the attention" if normed else "the tokens before the norm"
        raise NotUnderstoodError(
            f"{cannot}skip={settings.skip!r} needs {what} of {layer.name}, in the shape that {layer.output} gives, and "
            f"no module is called with it; use {hint}."
        )
    if settings.skip == "replace" and layer.sums:
        raise ValueError(f"{cannot}skip='replace' cannot be exact in {layer.name}: {layer.sums}; use skip='stream'.")


def _check_stock(model: nn.Module, stock: list[Tensor], example: Any, run: RunBatch | None) -> None:
    conversion = conversion_of(model)
    assert conversion is not None
    zero = ConversionSettings(ScoreRule.hopfield(0.0), 0.0, conversion.settings.backend, "stream")
    for stack in conversion.stacks:
        stack.settings = zero
    try:
        with quiet_evaluation(model):
            converted = _tensors(_run(model, example, run))
    finally:
        for stack in conversion.stacks:
            stack.settings = conversion.settings
    for one, other in zip(stock, converted, strict=True):
        close = 1e-3 if one.dtype == torch.float32 else torch.finfo(one.dtype).eps ** 0.5  # of the largest entry
        if one.numel() and not (one - other).abs().max() <= close * one.abs().max().clamp(min=1e-12):
            raise NotUnderstoodError(
                f"{type(model).__name__} cannot be converted: with alpha = alpha_hidden = 0 it does not give its stock "
                "output."
            )


def _tensors(value: Any) -> list[Tensor]:
    """Every floating-point tensor in what a model gave."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        value = list(value.values())
    return [found for part in value for found in _tensors(part)] if isinstance(value, list | tuple) else []


def _add_hooks(model: nn.Module, settings: ConversionSettings, plan: Plan) -> None:
    conversion = PlainConversion(settings, plan)
    setattr(model, CONVERSION, conversion)
    for stack in plan.own:
        state = StackState(settings, len(stack.layers))
        conversion.stacks.append(state)
        for n, layer in enumerate(stack.layers, start=1):
            mark = PlainLayerMark(n, layer, state)
            conversion.marks.append(mark)
            _hook_layer(model, conversion, mark)
    conversion.encoders = _without_nested_tensors(model)


def _hook_layer(model: nn.Module, conversion: PlainConversion, mark: PlainLayerMark) -> None:
    layer = mark.plan
    roles = {"stream": layer.stream, "normed": layer.normed if conversion.settings.skip == "normed" else None}
    for role, argument in roles.items():
        if argument is not None:
            source = _module(model, argument.module)
            if SOURCES not in source.__dict__:
                setattr(source, SOURCES, [])
                source.register_forward_pre_hook(remember, with_kwargs=True)
                conversion.sources.append(source)
            getattr(source, SOURCES).append((mark, argument.key, role))
    attention = _module(model, layer.name)
    add_learned(attention, conversion.settings, layer.heads, mark.n, model)
    setattr(attention, LAYER, mark)
    attention.register_forward_pre_hook(enter, with_kwargs=True)
    attention.register_forward_hook(leave, always_call=True)
    conversion.attentions.append(attention)
    if layer.output is not None:
        parent, _, name = layer.output.rpartition(".")
        mark.output = (_module(model, parent), name)
        mark.follow_output()


def _module(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise ValueError(
            f"the plan names {path}, which {type(model).__name__} does not have; build the model as it was, or convert "
            "it again with example=."
        ) from None


def uninstall(model: nn.Module) -> None:
    """Undo `install`; a stock module stays as it is."""
    owner, conversion = _owner(model), conversion_of(model)
    if owner is None or conversion is None:
        return
    for mark in conversion.marks:
        mark.release_output()
    for attention in conversion.attentions:
        remove_learned(attention)
        remove_hook(attention, enter)
        remove_hook(attention, leave)
        with contextlib.suppress(AttributeError):
            delattr(attention, LAYER)
    for source in conversion.sources:
        remove_hook(source, remember)
        delattr(source, SOURCES)
    for encoder in conversion.encoders:
        encoder.use_nested_tensor = True  # type: ignore[assignment]
    delattr(owner, CONVERSION)


def _owner(model: nn.Module) -> nn.Module | None:
    return next((module for module in model.modules() if CONVERSION in module.__dict__), None)


def conversion_of(model: nn.Module) -> PlainConversion | None:
    """What `install` changed in this module or in one inside it, None if it is stock."""
    owner = _owner(model)
    return None if owner is None else owner.__dict__[CONVERSION]


def change_alpha(model: nn.Module, alpha: float | None, alpha_hidden: float | None) -> None:
    """Change the numbers of a converted module; what is None stays."""
    conversion = conversion_of(model)
    if conversion is None:
        raise ValueError(f"{type(model).__name__} is not converted; call uncollapse.convert(model) first.")
    if alpha is not None and alpha > 0:
        settings = conversion.settings
        check(conversion.plan, ConversionSettings(settings.rule, alpha, settings.backend, settings.skip))
    conversion.settings.change(alpha, alpha_hidden)
