"""Loading a saved model: what does not fit together is named in one sentence, and never replaced by random weights."""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import transformers
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils.hub import cached_file

from uncollapse.extras import MissingExtraError

from ._settings import CONFIG_KEY, ConversionSettings
from ._weight_files import check_files
from .editing import REMEDIES_KEY
from .huggingface import install
from .learned import is_ours, learned_parameters, load_learned
from .skip_free import SKIP_FREE_KEY, remove_residuals

WRAPPERS = r"^((module|_orig_mod|base_model\.model)\.)+"  # what DDP, torch.compile and PEFT put before the names
HUB_KEYWORDS = ("cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")
HOW_TO_TRUST = "read it first, then allow it with trust_remote_code=True, or uncollapse diagnose --trust-remote-code"
REMEDY = "give a folder whose weights belong to its config, or name the right class."
LONGEST = 300  # characters of a reason that another library gives
ELSEWHERE = ("gguf_file", "state_dict", "subfolder", "variant")  # keywords that take weights from other files


Rebuild = Callable[[PreTrainedModel, Any], None]  # rebuild(model, data) applies the remedies of a config again


def load(
    path: str | os.PathLike[str], auto_class: Any, rebuild: Rebuild | None = None, **kwargs: Any
) -> PreTrainedModel:
    """A saved model, converted again if its config says so; code that comes with it is not run unless it is trusted."""
    kwargs = {"trust_remote_code": False} | kwargs  # without a value transformers may ask at the terminal
    with _in_one_sentence(path):
        _check_class(auto_class)
        config = kwargs.get("config") or read_config(path, auto_class, **kwargs)
        kind = auto_class or _class_of(config, path, kwargs["trust_remote_code"])
        if Path(path).is_dir() and not any(kwargs.get(key) for key in ELSEWHERE):
            check_files(Path(path), config, kind, kwargs["trust_remote_code"])
        model = _with_weights(path, kind, new_head=auto_class is not None, **kwargs)
        if getattr(model.config, SKIP_FREE_KEY, False):
            remove_residuals(model)
        data = getattr(model.config, CONFIG_KEY, None)
        if data is not None:
            install(model, ConversionSettings.from_config(data))
        remedies = getattr(model.config, REMEDIES_KEY, None)
        if remedies is not None:
            if rebuild is None:
                raise ValueError(f"{path} has remedies; load it with uncollapse.from_pretrained.")
            rebuild(model, remedies)
        if any(True for _ in learned_parameters(model.base_model)):
            load_learned(model.base_model, _learned_tensors(path, **kwargs))
    return model


def _learned_tensors(path: str | os.PathLike[str], **kwargs: Any) -> dict[str, Tensor]:
    """The learned coefficients in the files of a saved model; transformers passes over them."""
    folder = Path(path)
    if not folder.is_dir():
        where = {key: value for key, value in kwargs.items() if key in HUB_KEYWORDS and key != "trust_remote_code"}
        folder = Path(str(cached_file(path, "model.safetensors", **where))).parent
    folder /= kwargs.get("subfolder") or ""
    found: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            found |= {name: tensors.get_tensor(name) for name in tensors.keys() if is_ours(name)}  # noqa: SIM118
    return found


def read_config(path: str | os.PathLike[str], auto_class: Any = None, **kwargs: Any) -> PreTrainedConfig:
    """The config of a saved model, as `auto_class` reads it; a ValueError or OSError if it cannot be used."""
    where = {"trust_remote_code": False} | {key: value for key, value in kwargs.items() if key in HUB_KEYWORDS}
    with _in_one_sentence(path):
        reader = getattr(auto_class, "config_class", None) or AutoConfig
        config: PreTrainedConfig = reader.from_pretrained(path, **where)
        heads, groups = (getattr(config, key, None) for key in ("num_attention_heads", "num_key_value_heads"))
        if isinstance(heads, int) and isinstance(groups, int) and groups > 0 and heads % groups:
            raise ValueError(
                f"the config of {path} has {heads} heads and {groups} key/value heads, which do not divide."
            )
        if not where["trust_remote_code"]:
            _refuse_kernels(config, path)
    return config


def _refuse_kernels(config: PreTrainedConfig, path: str | os.PathLike[str]) -> None:
    """Raise if the config names an attention function of the hub, which is code as well."""
    parts = [getattr(config, key, None) for key in config.sub_configs]
    for part in (config, *parts):
        name = getattr(part, "_attn_implementation", None)
        if "/" in str(name):
            raise ValueError(
                f"the config of {path} names {name!r}, an attention function of the hub, which is not run; "
                f"{HOW_TO_TRUST}."
            )


def _check_class(auto_class: Any) -> None:
    """Raise unless `auto_class` can build a model."""
    if auto_class is None or str(getattr(auto_class, "__name__", "")).startswith("AutoModel"):
        return
    if not (isinstance(auto_class, type) and issubclass(auto_class, PreTrainedModel)):
        name = getattr(auto_class, "__name__", repr(auto_class))
        raise ValueError(f"{name} is no model of transformers; name one such as BertForMaskedLM.")


def _class_of(config: PreTrainedConfig, path: str | os.PathLike[str], trusted: bool) -> Any:
    """The class that the config names first, of transformers or, if that is trusted, of the folder's own code."""
    names = getattr(config, "architectures", None)
    name = names[0] if isinstance(names, list) and names else None
    if trusted:
        own = getattr(config, "auto_map", None) or {}
        for auto, where in own.items():
            if auto.startswith("AutoModel") and str(where).endswith(f".{name}"):
                return getattr(transformers, auto)
    kind = getattr(transformers, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise ValueError(
            f"the config of {path} names the architecture {name!r}, which is no model of transformers; "
            "name a class: auto_class=transformers.AutoModelForCausalLM, or --architecture AutoModelForCausalLM."
        )
    return kind


def _with_weights(path: str | os.PathLike[str], kind: Any, new_head: bool, **kwargs: Any) -> PreTrainedModel:
    """The model with the weights of `path`; transformers would replace those that it does not find by random ones."""
    # without the keyword transformers raises too, but logs the names of the weights where nobody may see them
    model, found = kind.from_pretrained(path, output_loading_info=True, **kwargs | {"ignore_mismatched_sizes": True})
    wrapped = next((key for key in found["unexpected_keys"] if re.match(WRAPPERS, key)), None)
    if wrapped is not None and "key_mapping" not in kwargs:
        prefix = wrapped[: len(wrapped) - len(re.sub(WRAPPERS, "", wrapped))]
        warnings.warn(f"the names of the weights of {path} begin with {prefix}, which was removed.", stacklevel=4)
        return _with_weights(path, kind, new_head, key_mapping={WRAPPERS: ""}, **kwargs)
    name = f"{path} for a {type(model).__name__}"
    if found["mismatched_keys"] and not kwargs.get("ignore_mismatched_sizes"):
        wrong = sorted(
            f"{key} is {tuple(stored)}, not {tuple(wanted)}" for key, stored, wanted in found["mismatched_keys"]
        )
        raise ValueError(f"{_are(wrong)} of a wrong shape in {name}: {_few(wrong)}; {REMEDY}")
    missing = sorted(key for key in found["missing_keys"] if not _is_pooler(model, key))
    head = [key for key in missing if not _in_base_model(model, key)]
    if missing and not (new_head and missing == head):
        raise ValueError(f"{_are(missing)} missing from {name}: {_few(missing)}; {REMEDY}")
    unexpected = sorted(key for key in found["unexpected_keys"] if not (_is_pooler(model, key) or is_ours(key)))
    if any(_in_base_model(model, key) for key in unexpected):
        raise ValueError(f"{_are(unexpected)} not expected in {name}: {_few(unexpected)}; {REMEDY}")
    if unexpected:
        warnings.warn(
            f"a {type(model).__name__} has no place for {len(unexpected)} weights of {path}: {_few(unexpected)}.",
            stacklevel=4,
        )
    if head:
        warnings.warn(f"{_are(head)} not in {name}: {_few(head)}; its head is new.", stacklevel=4)
    return cast(PreTrainedModel, model)


def _in_base_model(model: PreTrainedModel, key: str) -> bool:
    """Whether a weight is one of the base model: heads may differ, and a pooler is one of them."""
    part = key.removeprefix(f"{model.base_model_prefix}.").partition(".")[0]
    return part in dict(model.base_model.named_children()) and not _is_pooler(model, key)


def _is_pooler(model: PreTrainedModel, key: str) -> bool:
    """Whether a weight is one of the pooler, which saved models often lack, and which no layer depends on."""
    return key.removeprefix(f"{model.base_model_prefix}.").startswith("pooler.")


def _are(names: list[str]) -> str:
    return "1 weight is" if len(names) == 1 else f"{len(names)} weights are"


def _few(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")


@contextmanager
def _in_one_sentence(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the libraries raise over a damaged folder into a ValueError of one sentence; an OSError stays."""
    try:
        yield
    except (OSError, ValueError) as error:
        if "contains custom code" not in str(error):  # as transformers puts it
            raise
        raise ValueError(f"{path} comes with code of its own, which is not run; {HOW_TO_TRUST}.") from error
    except MissingExtraError:
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} cannot be loaded: its torch file is damaged, or holds more than weights.") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:LONGEST]
        raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {reason}") from error
