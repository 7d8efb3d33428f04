"""Soft cap: scores become c tanh(s / c), so that no logit is larger than c."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from uncollapse.models.editing import AttentionCall, Edit, EditedLayer, Surroundings, edited_model

from .remedy import EditRemedy
from .seen import LayerProof, Seen, edit_row, see


class ScoreCap(Edit):
    """The cap of one layer; the mask comes after it."""

    name = "soft_cap"
    at_call = True
    inherits = False
    cap: float

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

    def prove(self, model: nn.Module, seen: Seen) -> list[LayerProof]:
        """A row for each layer; scores far below the cap are proved by another forward, with caps that they meet."""
        rows = super().prove(model, seen)
        met = {row.layer: _tenth_of_largest(seen, row.layer) for row in rows if not row.does_something}
        met = {n: cap for n, cap in met.items() if 0 < cap < self.cap}
        if not met:
            return rows
        edits = {layer.n: (layer, edit) for layer, edit in _caps(model)}
        with _lowered({edits[n][1]: cap for n, cap in met.items()}):
            again = see(model, seen.batch, seen.run)
            tried = {n: edit_row(*edits[n], again) for n in met}
        note = "scores up to {:.3g} do not meet the cap {:g} on this batch; a tenth of that was tried"
        tried = {n: replace(row, note=note.format(10 * met[n], self.cap)) for n, row in tried.items()}
        return [tried.get(row.layer, row) for row in rows]


def _caps(model: nn.Module) -> Iterator[tuple[EditedLayer, ScoreCap]]:
    shared = edited_model(model)
    for layer in [] if shared is None else shared.layers:
        yield from ((layer, edit) for edit in layer.edits if isinstance(edit, ScoreCap))


@torch.no_grad()
def _tenth_of_largest(seen: Seen, n: int) -> float:
    """A tenth of the largest score of layer n, by size; 0 where it did not run."""
    if n not in seen.calls:
        return 0.0
    query, key, scale = seen.calls[n].call.query, seen.calls[n].call.key, seen.calls[n].call.scale
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return 0.1 * scale * float((query @ key.mT).abs().max())


@contextmanager
def _lowered(caps: Mapping[ScoreCap, float]) -> Iterator[None]:
    """Other caps for one forward."""
    stock = {edit: edit.cap for edit in caps}
    try:
        for edit, cap in caps.items():
            edit.cap = cap
        yield
    finally:
        for edit, before in stock.items():
            edit.cap = before


def check_positive(name: str, value: Any) -> None:
    """Raise unless a setting is a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}.")
