"""`FILE.py:build`: a model that a Python file makes, and the batches that it is run on."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .command import UserError, nearest

PATTERN = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")


def is_python_model(name: str) -> bool:
    """Whether a model is named as FILE.py:build.

    >>> is_python_model("train.py:make"), is_python_model("gpt2")
    (True, False)
    """
    return PATTERN.fullmatch(name) is not None


def load_python_model(name: str, example: str | None) -> tuple[Any, Any]:
    """The module that FILE.py:build makes, and the batches that `example` names: a .pt file, or a name in FILE.py."""
    found = PATTERN.fullmatch(name)
    assert found is not None
    if example is None:
        raise UserError(
            f"{name} needs --example: a .pt file with a batch, or a name in {found['file']} that gives one."
        )
    source = _imported(Path(found["file"]))
    model = _made(source, found["name"])
    from torch import nn

    if not isinstance(model, nn.Module):
        raise UserError(f"{name} must make a torch.nn.Module, and made a {type(model).__name__}.")
    return model, _read_batch(Path(example)) if Path(example).suffix in (".pt", ".pth") else _made(source, example)


def _imported(file: Path) -> ModuleType:
    if not file.is_file():
        raise UserError(f"there is no file {file}.")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))  # as `python FILE.py` would find the modules beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _made(source: ModuleType, name: str) -> Any:
    """What a name in the file stands for: the result, if it is a function or a class."""
    if not hasattr(source, name):
        names = [key for key in vars(source) if not key.startswith("_")]
        raise UserError(f"{source.__file__} has no {name}; {nearest(name, names, 'define it there.')}")
    value = getattr(source, name)
    if not callable(value) or isinstance(value, _module_type()):
        return value
    try:
        return value()
    except TypeError as error:
        raise UserError(f"{name} of {source.__file__} must be called without arguments: {error}") from error


def _module_type() -> type:
    from torch import nn

    return nn.Module


def _read_batch(file: Path) -> Any:
    import torch

    try:
        return torch.load(file, weights_only=True)
    except FileNotFoundError:
        raise UserError(f"there is no file {file}.") from None
    except Exception as error:
        raise UserError(f"{file} holds no batch: a tensor, a tuple or a dict of tensors was expected.") from error
