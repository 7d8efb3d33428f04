"""Value mixing: attention that keeps tokens apart, by what it adds to the attended values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from uncollapse.attention.masking import HIDING
from uncollapse.models.editing import AttentionCall, Edit, EditedLayer, Surroundings

from .remedy import EditRemedy

COEFFICIENTS = ("attended", "own", "mean", "first", "attended_first")  # a, b, c, e, f


class MixedValues(Edit):
    """A (a V + f V_1) + b V + c mean(V) + e V_1 of one layer.

    The mean is over the keys that a query sees; V_1 are the values of layer 1.
    """

    name = "value_mixing"
    at_call = True

    def __init__(self, start: dict[str, float], heads: int, like: Tensor, learned: bool) -> None:
        super().__init__()
        self.start, self.learned = start, learned
        self.needs_first = learned or start["first"] != 0 or start["attended_first"] != 0
        if learned:
            for key in COEFFICIENTS:
                self.register_parameter(key, nn.Parameter(like.new_full((heads,), start[key])))

    def coefficient(self, key: str) -> float | Tensor:
        """A number, or (H, 1, 1) if it is learned."""
        return getattr(self, key).view(-1, 1, 1) if self.learned else self.start[key]

    def before(self, call: AttentionCall, around: Surroundings) -> AttentionCall:
        """Attend to V and V_1 at once."""
        if not self._acts("attended_first"):
            return call
        first = around.first_values
        assert first is not None
        value = self._by_head("attended", call.value, call) + self._by_head("attended_first", first, call)
        key = call.key if value.shape[1] == call.key.shape[1] else _all_heads(call.key, call)
        return call._replace(value=value, key=key)

    def after(self, out: Tensor, call: AttentionCall, around: Surroundings) -> Tensor:
        """Add the rest to what was attended to, (B, H, Q, Dv)."""
        value = around.values
        assert value is not None
        if not self._acts("attended_first"):
            out = out if self._is("attended", 1.0) else self.coefficient("attended") * out
        if self._acts("own"):
            out = self._plus(out, "own", own_rows(value, call), call)
        if self._acts("mean"):
            out = self._plus(out, "mean", mean_of_visible(value, call), call)
        if self._acts("first"):
            assert around.first_values is not None
            out = self._plus(out, "first", own_rows(around.first_values, call), call)
        return out

    def _plus(self, out: Tensor, key: str, values: Tensor, call: AttentionCall) -> Tensor:
        """The output and a coefficient times values (B, G, Q, Dv), in one pass."""
        values = _all_heads(values, call)
        coefficient = self.coefficient(key)
        if isinstance(coefficient, Tensor):
            return torch.addcmul(out, coefficient, values)
        return torch.add(out, values, alpha=coefficient)

    def _acts(self, key: str) -> bool:
        return self.learned or self.start[key] != 0

    def _is(self, key: str, number: float) -> bool:
        return not self.learned and self.start[key] == number

    def _by_head(self, key: str, values: Tensor, call: AttentionCall) -> Tensor:
        """The coefficient times values (B, G, T, Dv), for all H heads unless the coefficient is one number."""
        return self.coefficient(key) * (_all_heads(values, call) if self.learned else values)


def _all_heads(values: Tensor, call: AttentionCall) -> Tensor:
    """The same values for each head of a group; values that are there for each head stay as they are."""
    group = call.query.shape[1] // values.shape[1]
    return values if group == 1 else values.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2)


def own_rows(values: Tensor, call: AttentionCall) -> Tensor:
    """Each query's own row (B, G, Q, Dv) of values (B, G, K, Dv): in a cache, that of the last key that it sees."""
    queries, keys = call.query.shape[2], values.shape[2]
    if queries == keys:
        return values
    if call.is_causal:  # over more keys than queries: an empty cache of fixed size
        return values[:, :, :queries]
    if call.attn_mask is None:
        return values[:, :, keys - queries :]
    seen = _visible(call)
    last = keys - 1 - seen.flip(-1).int().argmax(-1)  # (B or 1, H or 1, Q)
    last = last[:, :1].expand(values.shape[0], values.shape[1], -1).unsqueeze(-1)
    return values.gather(2, last.expand(-1, -1, -1, values.shape[-1]))


def mean_of_visible(values: Tensor, call: AttentionCall) -> Tensor:
    """The mean of the values that each query sees: (B, G, Q, Dv), or (B, G, 1, Dv) where all see the same."""
    call = call.with_mask()
    if call.is_causal:
        count = torch.arange(1, values.shape[2] + 1, device=values.device, dtype=values.dtype)
        return values.cumsum(2) / count.view(-1, 1)
    if call.attn_mask is None:
        return values.mean(2, keepdim=True)
    seen = _visible(call)[:, :1].to(values.dtype)  # (B or 1, 1, Q, K)
    return seen @ values / seen.sum(-1, keepdim=True).clamp(min=1.0)


def _visible(call: AttentionCall) -> Tensor:
    """Which keys each query sees, from a mask (B or 1, H or 1, Q, K)."""
    mask = call.attn_mask
    assert mask is not None
    if mask.dtype == torch.bool:
        return mask
    return mask > HIDING


@dataclass(frozen=True)
class ValueMixing(EditRemedy):
    """A (a V + f V_1) + b V + c mean(V) + e V_1 in place of A V, with the same coefficients in every head and layer.

    V_1 are the values of layer 1, mean(V) is over the keys that a query sees. `learned=True` makes parameters of all
    five, one for each head and layer, that start at the numbers given. Known methods are points of it:

    - `ValueMixing.shaped(0.5)`: shaped attention, A V + g (V - mean(V)); the paper has b and c apart;
    - `ValueMixing.attn_scale(0.5)`: AttnScale, (1 + w) A V - w mean(V);
    - `ValueMixing.neutreno(0.6)`: NeuTRENO, A V + l (V_1 - V);
    - `ValueMixing.value_residual(0.5)`: value residual, A (l V + (1 - l) V_1).

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> model = uc.apply(model, uc.remedies.ValueMixing.neutreno(0.6), example=torch.randn(1, 3, 8))
    >>> uc.remedies.applied(model)
    [ValueMixing(attended=1.0, own=-0.6, mean=0.0, first=0.6, attended_first=0.0, learned=False)]
    """

    name: ClassVar[str] = "value_mixing"
    kind: ClassVar[type[Edit]] = MixedValues
    attended: float = 1.0
    own: float = 0.0
    mean: float = 0.0
    first: float = 0.0
    attended_first: float = 0.0
    learned: bool = False

    def __post_init__(self) -> None:
        for key in COEFFICIENTS:
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{key} must be a number, got {value!r}.")
        if not isinstance(self.learned, bool):
            raise ValueError(f"learned must be True or False, got {self.learned!r}.")
        if not self.learned and [getattr(self, key) for key in COEFFICIENTS] == [1, 0, 0, 0, 0]:
            raise ValueError(
                "value_mixing with attended = 1 and nothing else is stock attention; give own, mean, first or "
                "attended_first, or learned=True."
            )

    @classmethod
    def shaped(cls, strength: float) -> ValueMixing:
        """A V + strength (V - mean(V)): shaped attention."""
        return cls(own=strength, mean=-strength)

    @classmethod
    def attn_scale(cls, strength: float) -> ValueMixing:
        """(1 + strength) A V - strength mean(V): AttnScale."""
        return cls(attended=1.0 + strength, mean=-strength)

    @classmethod
    def neutreno(cls, strength: float) -> ValueMixing:
        """A V + strength (V_1 - V): NeuTRENO."""
        return cls(own=-strength, first=strength)

    @classmethod
    def value_residual(cls, keep: float = 0.5) -> ValueMixing:
        """A (keep V + (1 - keep) V_1): value residual."""
        return cls(attended=keep, attended_first=1.0 - keep)

    def edit(self, layer: EditedLayer, like: Tensor) -> Edit:
        """The coefficients of one layer."""
        start = {key: float(value) for key, value in asdict(self).items() if key in COEFFICIENTS}
        return MixedValues(start, layer.plan.heads, like, self.learned)
