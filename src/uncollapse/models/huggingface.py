"""Models of transformers, converted through `AttentionInterface`: find the layers, add the hooks, load and save."""

from __future__ import annotations

import os
from typing import Any, cast

import transformers
from transformers import AutoConfig, PreTrainedModel

from ._hooks import CONFIG_KEY, add_hooks, conversion_of, remove_hooks
from ._interface import KEYWORD, NAME, PassScores, evaluation, is_causal_call, refuse_unknown
from ._settings import ConversionSettings
from ._trial import check_convertible, check_replaceable, find_layers
from .families import family_of, layers_of
from .skip_free import SKIP_FREE_KEY, remove_residuals

__all__ = [
    "KEYWORD",
    "NAME",
    "PassScores",
    "change_alpha",
    "evaluation",
    "install",
    "is_causal_call",
    "load",
    "refuse_unknown",
    "uninstall",
]

HUB_KEYWORDS = ("cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")


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


def load(path: str | os.PathLike[str], auto_class: Any, **kwargs: Any) -> PreTrainedModel:
    """A saved model, converted again if its config says so."""
    if auto_class is None:
        where = {key: value for key, value in kwargs.items() if key in HUB_KEYWORDS}
        names = AutoConfig.from_pretrained(path, **where).architectures or [None]
        auto_class = getattr(transformers, str(names[0]), None)
        if auto_class is None:
            raise ValueError(
                f"the config of {path} names the architecture {names[0]!r}, which transformers does not have; "
                "pass auto_class, for example transformers.AutoModelForCausalLM."
            )
    model = cast(PreTrainedModel, auto_class.from_pretrained(path, **kwargs))
    if getattr(model.config, SKIP_FREE_KEY, False):
        remove_residuals(model)
    data = getattr(model.config, CONFIG_KEY, None)
    if data is not None:
        install(model, ConversionSettings.from_config(data))
    return model
