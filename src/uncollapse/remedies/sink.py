"""Sink: one more logit for each head in the softmax's sum, which has no value, so that a head may attend to nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from uncollapse.models.editing import AttentionCall, Edit, EditedLayer, Surroundings

from .remedy import EditRemedy


class SinkLogits(Edit):
    """The logits of one layer."""

    name = "sink"
    at_call = True
    inherits = False

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)  # (H,)

    @property
    def sink(self) -> Tensor:  # type: ignore[override]
        """The logits, as the call has them."""
        return self.logits

    def before(self, call: AttentionCall, around: Surroundings) -> AttentionCall:
        """Add the sink to the call."""
        return call._replace(sink=self.logits)


@dataclass(frozen=True)
class Sink(EditRemedy):
    """A learned logit for each head in the sum of the softmax; it starts at `start`, and 0 is softmax off by one.

    A very negative start is the stock model, whose sinks then hardly get a gradient.

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> x = torch.randn(1, 3, 8)
    >>> model = uc.apply(model, "sink", example=x)
    >>> model.layers[0].self_attn.uncollapse_sink.logits.tolist()
    [0.0, 0.0]
    """

    name: ClassVar[str] = "sink"
    kind: ClassVar[type[Edit]] = SinkLogits
    start: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.start, bool) or not isinstance(self.start, int | float) or not math.isfinite(self.start):
            raise ValueError(f"start must be a number, got {self.start!r}.")

    def edit(self, layer: EditedLayer, like: Tensor) -> Edit:
        """The logits of one layer, (H,)."""
        return SinkLogits(like.new_full((layer.plan.heads,), float(self.start)))
