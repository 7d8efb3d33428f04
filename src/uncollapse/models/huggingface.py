"""Models of transformers, converted through `AttentionInterface`: find the layers, add the hooks, load and save."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable
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

WRAPPERS = r"^((module|_orig_mod|base_model\.model)\.)+"  # what DDP, torch.compile and PEFT put before the names
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
    """A saved model, converted again if its config says so; code that comes with it is not run unless asked for."""
    kwargs = {"trust_remote_code": False} | kwargs  # without a value transformers may ask at the terminal
    if auto_class is None:
        where = {key: value for key, value in kwargs.items() if key in HUB_KEYWORDS}
        names = AutoConfig.from_pretrained(path, **where).architectures or [None]
        auto_class = getattr(transformers, str(names[0]), None)
        if not (isinstance(auto_class, type) and issubclass(auto_class, PreTrainedModel)):
            raise ValueError(
                f"the config of {path} names the architecture {names[0]!r}, which is no model of transformers; "
                "pass auto_class, for example transformers.AutoModelForCausalLM."
            )
    model = _with_weights(path, auto_class, **kwargs)
    if getattr(model.config, SKIP_FREE_KEY, False):
        remove_residuals(model)
    data = getattr(model.config, CONFIG_KEY, None)
    if data is not None:
        install(model, ConversionSettings.from_config(data))
    return model


def _with_weights(path: str | os.PathLike[str], auto_class: Any, **kwargs: Any) -> PreTrainedModel:
    """The model with the weights of `path`; transformers would replace those that it does not find by random ones."""
    model, found = auto_class.from_pretrained(path, output_loading_info=True, **kwargs)
    wrapped = next((key for key in found["unexpected_keys"] if re.match(WRAPPERS, key)), None)
    if wrapped is not None and "key_mapping" not in kwargs:
        prefix = wrapped[: len(wrapped) - len(re.sub(WRAPPERS, "", wrapped))]
        warnings.warn(f"the names of the weights of {path} begin with {prefix}, which was removed.", stacklevel=4)
        return _with_weights(path, auto_class, key_mapping={WRAPPERS: ""}, **kwargs)
    for kind, keys in (("missing from", found["missing_keys"]), ("not expected in", found["unexpected_keys"])):
        inside = sorted(key for key in keys if _in_base_model(model, key))
        if inside:
            raise ValueError(
                f"{len(inside)} weights are {kind} {path} for a {type(model).__name__}: {_few(inside)}; "
                "give a folder whose weights belong to its config, or name the right class."
            )
    return cast(PreTrainedModel, model)


def _in_base_model(model: PreTrainedModel, key: str) -> bool:
    """Whether a weight is one of the base model: heads may differ, and a pooler is one of them."""
    part = key.removeprefix(f"{model.base_model_prefix}.").partition(".")[0]
    return part != "pooler" and part in dict(model.base_model.named_children())


def _few(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")
