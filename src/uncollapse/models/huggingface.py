"""Models of transformers, converted through `AttentionInterface`: find the layers, add the hooks."""

from __future__ import annotations

from transformers import PreTrainedModel

from ._hooks import add_hooks, conversion_of, remove_hooks
from ._interface import HARMLESS, KEYWORD, NAME, PassScores, evaluation, is_causal_call, refuse_unknown
from ._settings import CONFIG_KEY, ConversionSettings
from ._trial import check_convertible, check_replaceable, find_layers
from .families import family_of, layers_of

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


def install(model: PreTrainedModel, settings: ConversionSettings) -> None:
    """Convert the model, or raise a ValueError that says why it cannot be; then it is as before."""
    before = conversion_of(model)
    remove_hooks(model)
    try:
        check_convertible(model)
        family = family_of(model)
        if settings.skip == "replace":
            check_replaceable(model, family)
        layers = list(layers_of(model, family)) if family is not None else find_layers(model)
        add_hooks(model, settings, layers)
    except ValueError:
        if before is not None:
            add_hooks(model, before.settings, before.layers)
        raise


def uninstall(model: PreTrainedModel) -> None:
    """Undo `install`; a stock model stays as it is."""
    remove_hooks(model)


def change_alpha(model: PreTrainedModel, alpha: float | None, alpha_hidden: float | None) -> None:
    """Change the numbers of a converted model; what is None stays."""
    conversion = conversion_of(model)
    if conversion is None:
        raise ValueError(f"{type(model).__name__} is not converted; call uncollapse.convert(model) first.")
    conversion.settings.change(alpha, alpha_hidden)
    setattr(model.config, CONFIG_KEY, conversion.settings.to_config())
