"""From a recipe to a run folder: data, model, trainer, checkpoints."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recipe import Recipe as Recipe
    from .run import Run as Run
    from .run import train as train
    from .run import train_seeds as train_seeds

_FILE_OF = {"Recipe": "recipe", "Run": "run", "train": "run", "train_seeds": "run"}
__all__ = ["Recipe", "Run", "train", "train_seeds"]


def __getattr__(name: str) -> Any:  # a recipe can be read without waiting for transformers
    if name in _FILE_OF:
        return getattr(import_module(f".{_FILE_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
