"""A plain PyTorch module on disk, with the inherited scores it was converted to and the remedies that it has."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from uncollapse import files

from . import plain
from ._settings import ConversionSettings
from .convert import Model, find_transformers_model
from .plain import Plan

FORMAT = 1
WEIGHTS, SETTINGS = "weights.pt", "uncollapse.json"


def save(model: nn.Module, folder: str | os.PathLike[str], remedies: Any = None) -> Path:
    """Write a module to a new folder: its weights, how it was converted, and `remedies`, which are plain data."""
    conversion = plain.conversion_of(model)
    if find_transformers_model(model) is not None and conversion is None:
        raise ValueError(
            f"{type(model).__name__} is a transformers model; call model.save_pretrained(folder), and "
            "uncollapse.from_pretrained(folder) to read it."
        )
    about: dict[str, Any] = {"format": FORMAT, "model": type(model).__name__, "conversion": None, "remedies": remedies}
    if conversion is not None:
        about["conversion"] = {"settings": conversion.settings.to_config(), "plan": conversion.plan.to_data()}
    text = json.dumps(about, indent=1)
    with files.new_folder(Path(folder)) as new:
        torch.save(model.state_dict(), new / WEIGHTS)
        (new / SETTINGS).write_text(text, encoding="utf-8")
    return Path(folder)


def load(build: Callable[[], Model], folder: str | os.PathLike[str], rebuild: Callable[[Model, Any], None]) -> Model:
    """A module that `save` wrote; `rebuild(model, data)` applies its remedies again."""
    where = Path(folder)
    file = where / SETTINGS
    if not file.is_file():
        raise FileNotFoundError(f"{where} holds no saved module: there is no {SETTINGS} in it.")
    about = files.json_object(file.read_text(encoding="utf-8"), str(file))
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{file} has format {about.get('format')!r}; this version of uncollapse reads format {FORMAT}."
        )
    model = build()
    if not isinstance(model, nn.Module):
        raise ValueError(f"build must make a torch.nn.Module, and made a {type(model).__name__}.")
    conversion = about.get("conversion")
    if conversion is not None:
        try:
            settings, plan = ConversionSettings.from_config(conversion["settings"]), Plan.from_data(conversion["plan"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{file} is damaged (it lacks {error}); save the module again.") from None
        plain.install(model, settings, plan=plan)
    if about.get("remedies") is not None:
        rebuild(model, about["remedies"])
    _load_weights(model, where / WEIGHTS)  # learned coefficients and those of remedies among them
    return model


def _load_weights(model: nn.Module, file: Path) -> None:
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True)
        model.load_state_dict(weights)
    except (pickle.UnpicklingError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is damaged, or holds more than weights.") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{file} does not fit the module that build makes: {reason}") from error
