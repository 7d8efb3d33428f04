"""Cell: one network to train for a table or figure, and what tells two trainings apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from uncollapse.training.recipe import Recipe, resolve

Budget = Literal["laptop", "paper", "tiny"]
IRRELEVANT = ("name", "log_every", "save_every", "backend", "parallel")  # keys that change no number of a cell
SHARED = (  # what cells have to have in common to be compared
    *("data", "family", "layers", "heads", "width", "residual", "length", "image_size", "vocab_size", "steps"),
    *("epochs", "batch_size", "learning_rate"),
)
OWN = ("alpha", "alpha_hidden", "kappa_scale", "kappa_mean")  # what sets a method apart


@dataclass(frozen=True)
class Cell:
    """An artefact, a method and a seed, and the recipe that trains it.

    >>> cell = Cell("example", "plain", "plain", 0, "laptop", "quickstart", {"steps": 10})
    >>> cell.name, len(cell.definition)
    ('example--plain--seed-0--laptop', 16)
    """

    artefact: str
    label: str  # its name within the artefact
    method: str  # what it is compared as; cells of one method may differ in OWN
    seed: int
    budget: Budget
    recipe: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, float] = field(default_factory=dict)  # of OWN, those that the method is about
    base: Cell | None = None  # whose trained model is probed

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.artefact}--{self.label}--seed-{self.seed}--{self.budget}"

    def resolved(self, model: str | None = None) -> Recipe:
        """The whole recipe; a probe needs the path of the model."""
        keys = {**self.keys, "seed": self.seed}
        return resolve(self.recipe, **keys, **({"model": model} if model else {}))

    @cached_property
    def definition(self) -> str:
        """A fingerprint of the training: equal for cells that train the same network, in whatever artefact.

        Keys at their default are left out, so that a key that recipes gain later changes no fingerprint.
        """
        defaults = {field.name: field.default for field in fields(Recipe)}
        keys = {
            name: value
            for name, value in asdict(self.resolved()).items()
            if name not in IRRELEVANT and value != defaults[name]
        }
        if self.base is not None:
            keys["model"] = self.base.definition
        return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What a reader has to know: the size of network, data and budget, and the method's own numbers."""
        recipe = asdict(self.resolved())
        if self.base is not None:  # a probe's recipe says nothing of the model
            recipe |= {name: getattr(self.base.resolved(), name) for name in ("layers", "heads", "width", "residual")}
        unused = ("image_size",) if recipe["task"] == "language" else ("length", "vocab_size")
        shared = {name: recipe[name] for name in SHARED if recipe[name] is not None and name not in unused}
        return {"budget": self.budget, **shared, **self.own}
