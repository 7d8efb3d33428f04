"""Kernels compiled for GPUs that are not there, with the arguments that `launch` really hands over."""

from __future__ import annotations

import re
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.attention.parity import Stack
from uncollapse.attention._gpu import carried_kernels, configs, launch, stacked_kernels

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
}
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclass(frozen=True)
class Launch:
    """One kernel as `launch` starts it."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Recorder:
    """In place of a kernel: keeps what it would be started with."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **options: self.launches.append(Launch(self.kernel, arguments, options))


@contextmanager
def recorded(generation: str) -> Any:
    """What `launch` starts on a device of a generation, recorded in place of being run."""
    launches: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configs, "generation", lambda device: generation)
        patch.setattr(launch, "generation", lambda device: generation)
        patch.setenv("UNCOLLAPSE_TRITON", "1")
        patch.setenv("TRITON_INTERPRET", "1")  # CPU tensors are to take this engine; the kernels are decorated already
        for module in (carried_kernels, stacked_kernels):
            for name, kernel in vars(module).items():
                if isinstance(kernel, triton.JITFunction):
                    patch.setattr(module, name, Recorder(kernel, launches))
        yield launches


def launches_of(generation: str, size: int, dtype: torch.dtype, backend: str, **arguments: Any) -> dict[str, Launch]:
    """The kernels of two layers, forward and backward, each as it is started last: name -> launch."""
    stack = Stack(depth=2, batch=1, heads=2, queries=128, keys=128, size=size, value_size=size, arguments=arguments)
    with recorded(generation) as launches:
        layers = stack.inputs(dtype)
        outs, _ = stack.run(layers, backend)
        stack.loss(outs).backward()
    return {found.kernel.__name__: found for found in launches}


def compiled(found: Launch, generation: str) -> Any:
    """The kernel for a generation."""
    options = dict(found.options)
    settings = {name: options.pop(name) for name in ("num_warps", "num_stages") if name in options}
    signature: dict[str, Any] = {}
    constants: dict[Any, Any] = {}
    hints: dict[tuple[int, ...], Any] = {}
    for index, (name, value) in enumerate(zip(found.kernel.arg_names, found.arguments, strict=False)):
        signature[name] = _described(value, (index,), constants, hints, name in UNSPECIALISED)
    for name, value in options.items():
        signature[name] = "constexpr"
        constants[(found.kernel.arg_names.index(name),)] = value
    source = ASTSource(found.kernel, signature, constexprs=constants, attrs=hints)
    return triton.compile(source, target=TARGETS[generation], options=settings)


UNSPECIALISED = ("seed_low", "seed_high", "threshold")


def _described(value: Any, path: tuple[int, ...], constants: dict[Any, Any], hints: dict[Any, Any], raw: bool) -> Any:
    """The type of an argument; 1 becomes a constant and multiples of 16 are noted, as at a real launch."""
    if isinstance(value, tuple):
        return tuple(_described(part, (*path, i), constants, hints, raw) for i, part in enumerate(value))
    if isinstance(value, torch.Tensor):
        hints[path] = [["tt.divisibility", 16]]
        return POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    if value == 1 and not raw:
        constants[path] = 1
        return "constexpr"
    if value % 16 == 0 and not raw:
        hints[path] = [["tt.divisibility", 16]]
    return "i32" if abs(value) < 2**31 else "i64"


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel needs."""

    shared: int  # bytes of shared memory
    spilled: int  # bytes of local memory
    registers: int


def resources(kernel: Any) -> Resources:
    """From the compiled code itself: the compiler's own account of registers can hide spills."""
    if "cubin" in kernel.asm:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            command = [TOOLS / "cuobjdump", "-res-usage", file.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        registers, stack, local = (int(re.search(rf"{word}:(\d+)", text)[1]) for word in ("REG", "STACK", "LOCAL"))
        return Resources(kernel.metadata.shared, max(stack, local), registers)
    text = kernel.asm["amdgcn"]
    spilled, registers = (int(re.search(rf"\.{word}:\s+(\d+)", text)[1]) for word in ("vgpr_spill_count", "vgpr_count"))
    return Resources(kernel.metadata.shared, 4 * spilled, registers)


def uses_tensor_cores(kernel: Any) -> bool:
    """Whether products are made by the units for matrices, not number by number."""
    text = kernel.asm.get("ptx") or kernel.asm["amdgcn"]
    return re.search(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma|v_mfma", text) is not None
