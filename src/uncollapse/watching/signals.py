"""Loss and gradient norm of every update; tensors wait where they are until a measurement reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

NAN = float("nan")


class Signals:
    """Numbers of single updates; reading each from a GPU at once would make it wait."""

    def __init__(self) -> None:
        self._losses: dict[int, list[Tensor]] = {}
        self._norms: dict[int, Tensor] = {}
        self._rows: list[tuple[int, float, float]] = []  # step, loss, gradient norm

    def add_loss(self, step: int, loss: Tensor | None) -> None:
        """The loss of a batch; those of accumulated batches are averaged."""
        if loss is not None:
            self._losses.setdefault(step, []).append(loss.detach().clone())

    def add_gradient(self, step: int, norm: Tensor) -> None:
        """The norm of the gradient of an update."""
        self._norms[step] = norm.detach()

    def read(self, done: int) -> None:
        """Read the numbers of all updates up to `done`, which are complete."""
        for step in sorted(step for step in {*self._losses, *self._norms} if step <= done):
            losses, norm = self._losses.pop(step, None), self._norms.pop(step, None)
            loss = NAN if losses is None else torch.stack([part.float().view(()) for part in losses]).mean().item()
            self._rows.append((step, loss, NAN if norm is None else norm.item()))

    def table(self, last: int | None = None) -> pd.DataFrame:
        """One row for each update that was read, or for the last of them: step, loss, gradient_norm."""
        rows = self._rows if last is None else self._rows[-last:]
        return pd.DataFrame(rows, columns=["step", "loss", "gradient_norm"])


def loss_of(output: Any) -> Tensor | None:
    """The loss among what a model gives: named so, or the one number in it."""
    if isinstance(output, Mapping) or hasattr(output, "loss"):
        found = output.get("loss") if isinstance(output, Mapping) else output.loss
        return found if _is_number(found) else None
    parts = output if isinstance(output, tuple | list) else (output,)
    numbers = [part for part in parts if _is_number(part)]
    return numbers[0] if len(numbers) == 1 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point()
