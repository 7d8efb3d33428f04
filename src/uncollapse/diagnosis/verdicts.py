"""What the numbers mean, in words. Each threshold is a constant with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pandas as pd

if TYPE_CHECKING:
    from .result import Diagnosis

Kind = Literal["not finite", "rank collapse", "common offset", "entropy collapse", "sink", "healthy"]


@dataclass(frozen=True)
class Verdict:
    """One finding: what, where (layers from 1; heads as (layer, head)), a sentence with its numbers, and what helps."""

    kind: Kind
    sentence: str
    layers: tuple[int, ...] = ()
    heads: tuple[tuple[int, int], ...] = ()
    remedy: str = ""

    @property
    def is_collapse(self) -> bool:
        """Whether this is a collapse rather than a property many healthy models have."""
        return self.kind in ("not finite", "rank collapse", "entropy collapse")

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()


def layer_ranges(layers: Iterable[int]) -> str:
    """Layer numbers in words.

    >>> layer_ranges([1, 2, 3, 7])
    'Layers 1-3, 7'
    """
    numbers = sorted(layers)
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    return f"Layer{'s' if len(numbers) > 1 else ''} {text}"
