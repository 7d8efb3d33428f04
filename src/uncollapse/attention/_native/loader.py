"""Compiles tiles.cpp on first use, keeps the result in the user's cache, and says which tensors it serves."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uncollapse import files

from .fakes import describe

SOURCE = Path(__file__).with_name("tiles.cpp")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LOADING = threading.Lock()
VECTOR_FLAGS = {
    "AVX2": ("-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"),
    "AVX512": (
        *("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
        *("-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512"),
    ),
}


def serves(q: Tensor, attn_mask: Tensor | None) -> bool:
    """Whether the compiled operators are there and can run one layer on these tensors."""
    if q.device.type != "cpu" or q.dtype not in DTYPES or (attn_mask is not None and attn_mask.requires_grad):
        return False
    available: bool = _available()
    return available


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _available() -> bool:
    if os.environ.get("UNCOLLAPSE_NATIVE", "1") == "0":
        return False
    with _LOADING:
        return operators() is not None


@functools.cache
def operators() -> Any:
    """The namespace of compiled operators, built if need be; None, after one warning, if that fails."""
    try:
        torch.ops.load_library(str(_library()))  # type: ignore[no-untyped-call]
        describe()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        warnings.warn(
            f"the C++ attention tiles could not be built ({reason}); torch tiles give the same results, slower. "
            "Set UNCOLLAPSE_NATIVE=0 to stop trying.",
            stacklevel=2,
        )
        return None
    return torch.ops.uncollapse_native


def _library() -> Path:
    command = _command()
    key = hashlib.sha256("\0".join((SOURCE.read_text(), torch.__version__, *command)).encode()).hexdigest()[:16]
    library = files.cache_root() / "native" / f"tiles-{key}.so"
    if not library.exists():
        with files.lock(library.with_suffix(".lock")):
            if not library.exists():  # another process may have built it while this one waited
                files.remove_leftovers(library.parent, library.name)
                _build(command, library)
    return library


def _command() -> list[str]:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
    home = Path(torch.__file__).parent
    return [
        *compiler.split(),
        *("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp", "-w"),
        *VECTOR_FLAGS.get(torch.backends.cpu.get_cpu_capability(), ()),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{home / 'include' / sub}" for sub in (".", "torch/csrc/api/include")),
        *(f"-L{home / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10"),
    ]


def _build(command: list[str], library: Path) -> None:
    started = time.monotonic()
    print("uncollapse: compiling the attention tiles, once ...", end="", file=sys.stderr, flush=True)
    try:
        with files.replacing(library) as new:
            run = subprocess.run(
                [*command[:1], str(SOURCE), *command[1:], "-o", str(new)], capture_output=True, text=True
            )
            if run.returncode:
                raise RuntimeError(_first_error(run.stderr) or f"{command[0]} ended with code {run.returncode}")
    finally:
        print(f" {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _first_error(text: str) -> str:
    return next((line for line in text.splitlines() if "error" in line), "")
