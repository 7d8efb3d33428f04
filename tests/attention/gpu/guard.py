"""What Triton's interpreter does not see: accesses out of bounds, races, undefined lanes, hints that are not true.

A kernel that is wrong in one of these ways gives right numbers under the interpreter and wrong ones, or none, on a GPU.
The guard stands between the interpreter and memory, and raises. Programs run in a shuffled order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

GRAIN = 2  # bytes that are watched together; no kernel writes single bytes
NOBODY, SEVERAL = -1, -2


class GuardError(AssertionError):
    """A kernel did what a GPU would not forgive."""


@dataclass
class Memory:
    """One tensor of a launch, and which program wrote and read each part of it."""

    start: int
    stop: int
    writer: np.ndarray = field(init=False)
    reader: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        cells = (self.stop - self.start) // GRAIN + 1
        self.writer, self.reader = np.full(cells, NOBODY), np.full(cells, NOBODY)

    def touch(self, addresses: np.ndarray, size: int, program: int, write: bool) -> None:
        first = (addresses - self.start) // GRAIN
        cells = np.concatenate([first + part for part in range(max(1, size // GRAIN))])
        writers, readers = self.writer[cells], self.reader[cells]
        others = (writers != NOBODY) & (writers != program)
        if others.any():
            deed = "writes" if write else "reads"
            raise GuardError(f"race: program {program} {deed} what program {writers[others][0]} wrote")
        strangers = (readers != NOBODY) & (readers != program)
        if not write:
            self.reader[cells] = np.where(strangers, SEVERAL, program)
        elif strangers.any():
            raise GuardError(f"race: program {program} writes what another program reads")
        else:
            self.writer[cells] = program


class Guard:
    """Watches one launch after the other."""

    def __init__(self) -> None:
        self.memory: list[Memory] = []
        self.order: list[int] = []
        self.program = 0
        self.launches = self.accesses = 0

    def start(self, arguments: list[Any]) -> None:
        """A kernel is launched with these arguments."""
        spans: dict[int, int] = {}
        for tensor in _tensors(arguments):
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            length = (last + 1) * tensor.element_size() if tensor.numel() else 0  # of the view, not of its storage
            spans[tensor.data_ptr()] = max(length, spans.get(tensor.data_ptr(), 0))
        self.memory = [Memory(start, start + length) for start, length in spans.items()]
        self.launches += 1

    def place(self, index: tuple[int, int, int], grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """The program that runs in place of this one: each runs once, in an order that no kernel may rely on."""
        count = grid[0] * grid[1] * grid[2]
        position = (index[0] * grid[1] + index[1]) * grid[2] + index[2]
        if position == 0:
            self.order = random.Random(self.launches).sample(range(count), count)
        self.program = self.order[position]
        return self.program // (grid[1] * grid[2]), self.program // grid[2] % grid[1], self.program % grid[2]

    def access(self, pointers: Any, mask: Any, write: bool) -> None:
        """A load or a store of the lanes that are not masked."""
        wanted = np.broadcast_to(mask.data, pointers.data.shape).reshape(-1).astype(bool)
        addresses = pointers.data.reshape(-1)[wanted].astype(np.int64)
        if addresses.size == 0:
            return
        self.accesses += 1
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        left = np.ones(addresses.size, bool)
        for memory in self.memory:
            here = left & (addresses >= memory.start) & (addresses + size <= memory.stop)
            if here.any():
                memory.touch(addresses[here], size, self.program, write)
                left &= ~here
        if left.any():
            deed = "store" if write else "load"
            raise GuardError(f"{deed} outside every argument: {left.sum()} of {left.size} lanes")


def _tensors(arguments: Any) -> Any:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _tensors(argument)
        elif hasattr(argument, "data_ptr"):
            yield argument


def install() -> Guard:
    """Put a guard in place for the rest of the process."""
    guard = Guard()
    builder, executor, handle = interpreter.InterpreterBuilder, interpreter.GridExecutor, interpreter.TensorHandle
    arguments_of, place, note = executor._init_args_hst, builder.set_grid_idx, handle.set_attr
    load, store = builder.create_masked_load, builder.create_masked_store

    def guarded_arguments(self: Any, args: Any, options: Any) -> Any:
        given, named = arguments_of(self, args, options)
        guard.start([*given, *named.values()])
        return given, named

    def guarded_place(self: Any, *index: int) -> None:
        place(self, *guard.place(index, self.grid_dim))

    def guarded_load(self: Any, pointers: Any, mask: Any, other: Any, *more: Any) -> Any:
        guard.access(pointers, mask, write=False)
        return load(self, pointers, mask, _undefined(pointers) if other is None else other, *more)

    def guarded_store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        guard.access(pointers, mask, write=True)
        return store(self, pointers, value, mask, *more)

    def guarded_note(self: Any, key: str, value: Any) -> None:
        if key == "tt.divisibility" and (np.asarray(self.data) % value[0]).any():
            raise GuardError(f"{np.asarray(self.data).reshape(-1)[0]} is said to be a multiple of {value[0]}")
        note(self, key, value)

    executor._init_args_hst, builder.set_grid_idx, handle.set_attr = guarded_arguments, guarded_place, guarded_note
    builder.create_masked_load, builder.create_masked_store = guarded_load, guarded_store
    return guard


def _undefined(pointers: Any) -> Any:
    """What masked lanes may hold on a GPU, where the interpreter gives 0: NaN, or a large number."""
    element = pointers.get_element_ty()
    kind = interpreter._get_np_dtype(element)
    value = np.nan if np.issubdtype(kind, np.floating) else np.iinfo(kind).max
    if element == tl.bfloat16:  # held as its bits
        value = 0x7FC0
    return interpreter.TensorHandle(np.full_like(pointers.data, value, dtype=kind), element)
