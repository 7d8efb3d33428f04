"""Several processes: what each of them measured is put together through the store they have in common.

The store of `torch.distributed` is asked, not a collective: a process that has run out of batches, or has left, gives
nothing, and nobody waits for it twice.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch.distributed as dist

WAIT = 20.0  # seconds for a process that gave something the last time
_NUMBERS = count()  # of the watches of a process: every process has them in the same order


@dataclass
class Exchange:
    """Gives what this process measured to the others, and takes what they did."""

    number: int = field(default_factory=lambda: next(_NUMBERS))
    silent: set[int] = field(default_factory=set)  # processes that gave nothing the last time
    given: list[str] = field(default_factory=list)  # keys under which this process gave something

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that logs and warns."""
        return not _several() or dist.get_rank() == 0

    def all(self, step: int, own: Any) -> list[Any]:
        """What the processes measured at a step, in their order; those that gave nothing are left out."""
        if not _several():
            return [own]
        store, me = _store(), dist.get_rank()
        store.set(key := self._key(step, me), pickle.dumps(own))
        self.given.append(key)
        if len(self.given) > 2:  # read by then: the others are at most one measurement behind, or gone
            store.delete_key(self.given.pop(0))
        deadline = time.monotonic() + WAIT
        found = []
        for rank in range(dist.get_world_size()):
            if rank == me:
                found.append(own)
            elif self._has_come(store, self._key(step, rank), rank, deadline):
                found.append(pickle.loads(store.get(self._key(step, rank))))
        return found

    def _key(self, step: int, rank: int) -> str:
        return f"uncollapse/watch/{self.number}/{step}/{rank}"

    def _has_come(self, store: Any, key: str, rank: int, deadline: float) -> bool:
        while not store.check([key]):
            if rank in self.silent or time.monotonic() > deadline:
                self.silent.add(rank)
                return False
            time.sleep(0.002)
        self.silent.discard(rank)
        return True


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
