"""Recipes shrunk to two steps on data that needs no download, so that every artefact can be tried in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uncollapse.training.recipe import Recipe, resolve

from .cell import Budget

EVERYWHERE = {
    **{"steps": 2, "batch_size": 4, "width": 16, "mlp_width": 32, "warmup_steps": 0, "log_every": 1, "eval_every": 1},
    **{"eval_examples": 8, "eval_batch_size": 8, "save_every": 2, "diagnose_every": 2, "diagnose_examples": 2},
    **{"learning_rate": 1e-3, "backend": "reference"},  # nothing to compile
}
LANGUAGE = {"data": "embedded", "tokenizer": "bpe", "vocab_size": 300, "length": 16, "examples": 40}
IMAGES = {"data": "digits", "image_size": 8, "patch_size": 4, "examples": 40, "crop": False}
MOST_LAYERS = {"post-norm": 1}  # else 2


def shrunk(recipe: Recipe) -> dict[str, Any]:
    """The keys that make a recipe tiny; the method stays."""
    keys = EVERYWHERE | (LANGUAGE if recipe.task == "language" else IMAGES)
    keys = keys | {"layers": min(recipe.layers, MOST_LAYERS.get(recipe.family, 2)), "heads": min(recipe.heads, 2)}
    if recipe.probe:
        return {**IMAGES, "steps": 2, "batch_size": 4, "eval_examples": 8, "log_every": 1, "save_every": 2}
    return keys


def at_budget(budget: Budget, recipe: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a cell, shrunk where the budget is tiny."""
    return {**keys, **shrunk(resolve(recipe, **keys))} if budget == "tiny" else dict(keys)
