"""Soft cap: scores become c tanh(s / c), so that no logit is larger than c."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from uncollapse.models.editing import AttentionCall, Edit, EditedLayer, Surroundings

from .remedy import EditRemedy


class ScoreCap(Edit):
    """The cap of one layer; the mask comes after it."""

    name = "soft_cap"
    at_call = True
    inherits = False

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def before(self, call: AttentionCall, around: Surroundings) -> AttentionCall:
        """Add the cap to the call."""
        return call._replace(cap=self.cap)

    def extra_repr(self) -> str:
        """For printing."""
        return f"cap={self.cap}"


@dataclass(frozen=True)
class SoftCap(EditRemedy):
    """Cap the scores of every layer softly at `cap`, as Gemma 2 does; no parameter is added.

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> x = torch.randn(1, 3, 8)
    >>> model = uc.apply(model, uc.remedies.SoftCap(cap=1.0), example=x)
    >>> uc.remedies.check(model, x).acts
    True
    """

    name: ClassVar[str] = "soft_cap"
    kind: ClassVar[type[Edit]] = ScoreCap
    cap: float = 50.0

    def __post_init__(self) -> None:
        check_positive("cap", self.cap)

    def edit(self, layer: EditedLayer, like: Tensor) -> Edit:
        """The cap, in one layer."""
        return ScoreCap(float(self.cap))


def check_positive(name: str, value: Any) -> None:
    """Raise unless a setting is a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}.")
