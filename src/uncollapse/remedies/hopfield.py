"""Inherited scores: the first paper's remedy, which is `uncollapse.convert`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from uncollapse.attention.rule import Skip, Start
from uncollapse.models.convert import convert, restore, settings_of

from ._inheritance import inheritance_rows
from .remedy import Remedy
from .seen import LayerProof, Seen


@dataclass(frozen=True)
class Hopfield(Remedy):
    """Modern Hopfield Attention; the settings are those of `uncollapse.convert`, which docs/attention.md explains.

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> model = uc.apply(model, "hopfield", alpha=0.0, alpha_hidden=0.5, example=torch.randn(1, 3, 8))
    """

    name: ClassVar[str] = "hopfield"
    alpha: float | str | None = None
    alpha_hidden: float | str = 0.5
    skip: Skip = "stream"
    start: Start = "zero"
    backend: str = "auto"

    def install(self, model: nn.Module, optimizer: Optimizer | None, example: Any) -> None:
        """Convert the model; its config keeps the settings, as after `convert`."""
        convert(model, example=example, **asdict(self))

    def remove(self, model: nn.Module) -> None:
        """Undo the conversion."""
        restore(model)

    def prove(self, model: nn.Module, seen: Seen) -> list[LayerProof]:
        """A row for each layer: what it inherits and skips, and whether as Eqs. 53 and 54 say."""
        if settings_of(model) is None:
            return [LayerProof(self.name, 1, 0.0, math.nan, note="the model is not converted")]
        return inheritance_rows(self.name, model, seen)
