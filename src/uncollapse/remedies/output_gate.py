"""Output gate: what each head has attended to is multiplied by a gate before W_O, so that a head can be silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from uncollapse.models.editing import AttentionCall, Edit, EditedLayer, Surroundings

from .remedy import EditRemedy

GatePer = Literal["head", "element"]


class Gate(Edit):
    """2 sigmoid(X W_g) of one layer: W_g = 0 leaves every head as it is, with a gradient."""

    name = "output_gate"
    at_call = True
    needs_tokens = True

    def __init__(self, weight: Tensor, per: GatePer) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)  # (H or H Dv, M)
        self.per = per

    def after(self, out: Tensor, call: AttentionCall, around: Surroundings) -> Tensor:
        """Multiply (B, H, Q, Dv) by the gates."""
        assert around.tokens is not None
        gate = 2.0 * torch.sigmoid(functional.linear(around.tokens, self.weight))  # (B, Q, H or H Dv)
        heads = gate.view(*gate.shape[:2], out.shape[1], -1).transpose(1, 2)  # (B, H, Q, 1 or Dv)
        return out * heads


@dataclass(frozen=True)
class OutputGate(EditRemedy):
    """W_O (2 sigmoid(X W_g) * heads), X being what enters the attention; W_g starts at 0, which is the stock model.

    With a plain sigmoid the gates would start at 1/2 and halve what the block adds; the factor 2 is a doubled W_O.

    Args:
        per: "head" for one gate a head and token, W_g (H, M); "element" for one an element, W_g (H D, M), which costs
            as much as another projection.

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> x = torch.randn(1, 3, 8)
    >>> stock = model(x)
    >>> torch.allclose(uc.apply(model, "output_gate", example=x)(x), stock, atol=1e-6)
    True
    """

    name: ClassVar[str] = "output_gate"
    kind: ClassVar[type[Edit]] = Gate
    per: GatePer = "head"

    def __post_init__(self) -> None:
        if self.per not in get_args(GatePer):
            raise ValueError(f'per must be "head" or "element", got {self.per!r}.')

    def refusal(self, layer: EditedLayer) -> str:
        """The width of what enters must be known."""
        return "" if layer.width else "has W_Q where it was not found, which tells how wide its tokens are"

    def edit(self, layer: EditedLayer, like: Tensor) -> Edit:
        """The gate of one layer."""
        assert layer.plan.query is not None
        gates = layer.plan.heads * (1 if self.per == "head" else layer.plan.query.size)  # values as wide as queries
        return Gate(like.new_zeros(gates, layer.width), self.per)
