"""The files of weights in a folder, looked at before they are loaded."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig
from transformers.quantizers.auto import AutoHfQuantizer

from uncollapse.files import MANIFEST, changed_file, json_object, read_manifest

WHOLE_NUMBERS = ("I", "U")  # the first letter of safetensors' dtypes that are no floating point


def check_files(folder: Path, config: PreTrainedConfig, kind: Any, trust_remote_code: bool) -> None:
    """Raise if the files cannot hold the weights of this config: transformers would first make room for random ones."""
    _check_seal(folder)
    for index in folder.glob("*.index.json"):
        _check_index(index)
    files = [file for suffix in ("safetensors", "bin") for file in folder.glob(f"*.{suffix}") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    if size == 0 or _is_quantised(config, folder):  # which may hold several weights in a byte
        return
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > size:
        raise ValueError(f"the config of {folder} describes {layers:,} layers, and its weights have {size:,} bytes.")
    model = _without_memory(config, kind, trust_remote_code)
    if model is None:
        return
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    empty = next((name for name, numbers in sizes.items() if numbers == 0), None)
    if empty is not None:
        raise ValueError(f"the config of {folder} describes an empty weight, {empty}.")
    count = sum(sizes.values())
    if count > size:
        raise ValueError(f"the config of {folder} describes {count:,} weights, and their files have {size:,} bytes.")
    parameters = {name.removeprefix(f"{model.base_model_prefix}.") for name in sizes}
    for file in files:
        if file.suffix == ".safetensors":
            _check_dtypes(file, parameters)


def _check_seal(folder: Path) -> None:
    """Raise if the model of a run is not what the run wrote."""
    try:
        entries = read_manifest(folder)["files"]
    except ValueError:  # there is none
        return
    ours = all({"size", "sha256"} <= entry.keys() for entry in entries.values())  # others use the name, too
    reason = changed_file(folder, entries) if ours else None
    if reason is not None:
        raise ValueError(
            f"{folder} is damaged: {reason}; write it again with train --resume, or remove its {MANIFEST} if it was "
            "changed on purpose."
        )


def _is_quantised(config: PreTrainedConfig, folder: Path) -> bool:
    """Whether the weights are quantised in a way that transformers knows; it would pass over one that it does not."""
    how = getattr(config, "quantization_config", None)
    if isinstance(how, dict) and not AutoHfQuantizer.supports_quant_method(how):  # type: ignore[no-untyped-call]
        raise ValueError(
            f"the config of {folder} names the quantisation {how.get('quant_method')!r}, which is not known."
        )
    return how is not None


def _check_index(index: Path) -> None:
    """Raise unless an index of shards names files beside it."""
    shards = json_object(index.read_text(encoding="utf-8"), str(index)).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(s, str) and Path(s).name == s for s in shards.values()):
        raise ValueError(f"{index} must say under weight_map which file of its folder holds each weight.")


def _without_memory(config: PreTrainedConfig, kind: Any, trust_remote_code: bool) -> Any:
    """The model on the meta device, which has shapes and no memory; None if it cannot be built there."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # loading says it again
            if hasattr(kind, "from_config"):  # of an auto class
                return kind.from_config(config, trust_remote_code=trust_remote_code)
            return kind(config)
    except Exception:  # loading meets the same error, or knows how to avoid it
        return None


def _check_dtypes(file: Path, parameters: set[str]) -> None:
    """Raise if a parameter is stored as whole numbers, whose scales nobody has given."""
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - no dict
            dtype = tensors.get_slice(name).get_dtype()
            if dtype.startswith(WHOLE_NUMBERS) and any(name.endswith(parameter) for parameter in parameters):
                raise ValueError(
                    f"{name} in {file} is stored as {dtype}, and the config names no quantisation; "
                    "save the model in floating point."
                )
