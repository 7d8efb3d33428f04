"""Score buffers reused from step to step: the page faults of a fresh one cost more than the attention itself.

A buffer is an ordinary tensor. Its memory returns to the pool when the last tensor that shares it is gone (saved by an
autograd node, held by a state, a gradient being passed down), never earlier; no caller has to return it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

POOLED_BYTES = 1 << 20  # smaller buffers are as fast from torch's own allocator
SLACK = 1.5  # a free block may be this many times larger than the request
IDLE_REQUESTS = 64  # a block that was free for this many requests, and four times as many as there are blocks, is freed


@dataclass(eq=False)
class _Block:
    memory: Tensor  # bytes
    last_used: int  # the request that took it last


class ScorePool:
    """Blocks of memory for score matrices on the CPU; other devices have caching allocators of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[_Block] = []
        # Blocks come back from finalizers, which may run inside `take` of the same thread: no lock may be needed.
        self._returned: deque[_Block] = deque()
        self._lent = 0
        self._requests = 0

    def take(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """`count` uninitialised scores."""
        size = count * dtype.itemsize
        if size < POOLED_BYTES or device.type != "cpu":
            return torch.empty(count, dtype=dtype, device=device)
        block = self._find(size)
        array = block.memory.numpy()[:size]
        weakref.finalize(array, self._returned.append, block).atexit = False
        return torch.from_numpy(array).view(dtype)

    def _find(self, size: int) -> _Block:
        with self._lock:
            self._requests += 1
            self._collect()
            fitting = [b for b in self._free if size <= b.memory.numel() <= SLACK * size]
            if fitting:
                block = min(fitting, key=lambda b: (b.memory.numel(), -b.last_used))
                self._free.remove(block)
            else:
                block = _Block(torch.empty(size, dtype=torch.uint8), 0)
            block.last_used = self._requests
            self._lent += 1
            patience = IDLE_REQUESTS + 4 * (self._lent + len(self._free))
            self._free = [b for b in self._free if self._requests - b.last_used <= patience]
            return block

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            block.last_used = self._requests
            self._free.append(block)
            self._lent -= 1

    def held_bytes(self) -> int:
        """Memory of the blocks that are not in use."""
        with self._lock:
            self._collect()
            return sum(b.memory.numel() for b in self._free)

    def release(self) -> None:
        """Free the blocks that are not in use."""
        with self._lock:
            self._collect()
            self._free.clear()


POOL = ScorePool()
