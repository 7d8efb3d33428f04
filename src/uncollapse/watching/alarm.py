"""Alarm: what a detector has found in the tables of a watch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alarm:
    """One finding: what, where (layers from 1; heads as (layer, head)), a sentence with its numbers, and what helps.

    `patience`: measurements in a row that make it worth telling. `passes`: it is over as soon as it is told, such as a
    spike, so that there is no recovery to tell.
    """

    kind: str
    sentence: str
    layers: tuple[int, ...] = ()
    heads: tuple[tuple[int, int], ...] = ()
    remedy: str = ""
    patience: int = 1
    passes: bool = False

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()
