"""From a recipe to a run folder: data, model, trainer, checkpoints."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from uncollapse.extras import require

if TYPE_CHECKING:
    from .recipe import Recipe as Recipe
    from .run import Run as Run
    from .run import train as train
    from .run import train_seeds as train_seeds

_FILE_OF = {"Recipe": "recipe", "Run": "run", "train": "run", "train_seeds": "run"}
__all__ = ["Recipe", "Run", "train", "train_seeds"]


def __getattr__(name: str) -> Any:  # reading a recipe does not import transformers
    if name in _FILE_OF:
        require("accelerate", "yaml")  # by which the extra `train` is known, before one of its parts is missed
        return getattr(import_module(f".{_FILE_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
