"""Models of transformers, converted through `AttentionInterface`: find the layers, add the hooks.

Models that bypass the interface, or hand it more than it can take, go through their attention calls (plain.py).
"""

from __future__ import annotations

from copy import copy
from typing import Any

from transformers import PreTrainedModel

from . import plain
from ._hooks import add_hooks, conversion_of, remove_hooks
from ._interface import HARMLESS, KEYWORD, NAME, PassScores, evaluation, is_causal_call, refuse_unknown
from ._settings import CONFIG_KEY, ConversionSettings
from ._trial import OtherRouteError, check_convertible, check_replaceable, find_layers, tiny_batch
from .families import family_of, layers_of
from .learned import all_learned, put_back

__all__ = [
    "HARMLESS",
    "KEYWORD",
    "NAME",
    "PassScores",
    "change_alpha",
    "conversion_of",
    "evaluation",
    "install",
    "is_causal_call",
    "refuse_unknown",
    "uninstall",
]


def install(model: PreTrainedModel, settings: ConversionSettings, example: Any = None) -> None:
    """Convert the model, or raise a ValueError that says why it cannot be; then it is as before."""
    before, kept = conversion_of(model), all_learned(model)
    remove_hooks(model)
    try:
        check_convertible(model)
        family = family_of(model)
        if settings.skip == "replace" and family is not None:
            check_replaceable(model, family)
        layers = list(layers_of(model, family)) if family is not None else find_layers(model)
        if settings.skip == "replace":
            check_replaceable(model, family)
        add_hooks(model, settings, layers)
    except OtherRouteError as reason:
        _install_by_calls(model, settings, example, reason)
    except ValueError:
        if before is not None:
            add_hooks(model, before.settings, before.layers)
            put_back(kept)
        raise


def _install_by_calls(model: PreTrainedModel, settings: ConversionSettings, example: Any, reason: ValueError) -> None:
    """Convert a model that the interface does not serve through its attention calls; `reason` says why it does not."""
    if settings.backend == "auto" and len(set(getattr(model.config, "layer_types", None) or ())) > 1:
        # windows after full attention need the scores of later keys too, which a causal layer does not keep
        settings = copy(settings)
        settings.backend = "reference"
    try:
        plain.install(model, settings, tiny_batch(model) if example is None else example)
    except plain.NotUnderstoodError:
        raise reason from None
    setattr(model.config, CONFIG_KEY, settings.to_config())


def uninstall(model: PreTrainedModel) -> None:
    """Undo `install`; a stock model stays as it is."""
    remove_hooks(model)
    if plain.conversion_of(model) is not None:
        plain.uninstall(model)
        if hasattr(model.config, CONFIG_KEY):
            delattr(model.config, CONFIG_KEY)


def change_alpha(model: PreTrainedModel, alpha: float | None, alpha_hidden: float | None) -> None:
    """Change the numbers of a converted model; what is None stays."""
    conversion = conversion_of(model)
    by_calls = plain.conversion_of(model)
    if by_calls is not None:
        plain.change_alpha(model, alpha, alpha_hidden)
        setattr(model.config, CONFIG_KEY, by_calls.settings.to_config())
        return
    if conversion is None:
        raise ValueError(f"{type(model).__name__} is not converted; call uncollapse.convert(model) first.")
    conversion.settings.change(alpha, alpha_hidden)
    setattr(model.config, CONFIG_KEY, conversion.settings.to_config())
