"""Which updates are measured: steps of the optimizer are counted, or training forwards where there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Schedule:
    """Counts updates, and says which forwards belong to one that is measured.

    With an optimizer all forwards up to its step belong to one update, so that accumulated batches are one measurement.

    >>> schedule = Schedule(every=2, by_forwards=False)
    >>> schedule.forward(), schedule.forward(), schedule.step()  # two accumulated batches of the first update
    (None, None, 1)
    >>> schedule.forward(), schedule.forward(), schedule.step()
    (2, 2, 2)
    """

    every: int
    by_forwards: bool
    done: int = 0  # updates so far

    def forward(self) -> int | None:
        """A training forward begins: the number of its update, if that is measured."""
        if self.by_forwards:
            self.done += 1
        current = self.done if self.by_forwards else self.done + 1
        return current if self.is_measured(current) else None

    def step(self) -> int:
        """The optimizer has made an update: its number."""
        self.done += 1
        return self.done

    def is_measured(self, update: int) -> bool:
        """Whether an update is measured."""
        return update % self.every == 0
