"""Compiles the sources of this folder on first use, each when it is needed, and keeps the results in the user's cache.

What is loaded runs in this process. So the folder of the cache has to be one that only the user can write to, and a
library is loaded only if it has the sha256 that was noted when it was built; otherwise it is built again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uncollapse import files

from .._compiling import constant_result
from .fakes import describe

FOLDER = Path(__file__).parent
HEADERS = ("matrices.h",)
LIBRARIES = {  # name of a source: what it holds
    "tiles": "attention tiles",
    "row_statistics": "attention statistics",
    "token_pairs": "token statistics",
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LOADING = threading.Lock()
VECTOR_FLAGS = {
    "AVX2": ("-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"),
    "AVX512": (
        *("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
        *("-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512"),
    ),
}


def serves(q: Tensor, attn_mask: Tensor | None, v: Tensor | None = None) -> bool:
    """Whether the compiled operators are there and can run one layer on these tensors."""
    if q.device.type != "cpu" or q.dtype not in DTYPES or (attn_mask is not None and attn_mask.requires_grad):
        return False
    return available("tiles")


@constant_result
def available(name: str) -> bool:
    """Whether the operators of a source are there, or could be built."""
    if os.environ.get("UNCOLLAPSE_NATIVE", "1") == "0":
        return False
    with _LOADING:
        return operators(name) is not None


@functools.cache
def operators(name: str) -> Any:
    """The namespace of compiled operators, with those of a source built if need be; None, after one warning, if not."""
    try:
        torch.ops.load_library(str(_library(name)))  # type: ignore[no-untyped-call]
        if name == "tiles":
            describe()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        warnings.warn(
            f"the C++ {LIBRARIES[name]} could not be built ({reason}); torch gives the same results, slower. "
            "Set UNCOLLAPSE_NATIVE=0 to stop trying.",
            stacklevel=2,
        )
        return None
    return torch.ops.uncollapse_native


def _library(name: str) -> Path:
    command = _command()
    sources = [(FOLDER / file).read_text() for file in (f"{name}.cpp", *HEADERS)]
    key = hashlib.sha256("\0".join((*sources, torch.__version__, *command)).encode()).hexdigest()[:16]
    library = _folder() / f"{name}-{key}.so"
    if not _is_as_built(library):
        with files.lock(library.with_suffix(".lock")):
            if not _is_as_built(library):  # another process may have built it while this one waited
                files.remove_leftovers(library.parent, library.name)
                _build(name, command, library)
    return library


def _folder() -> Path:
    """`native` in the user's cache; a private temporary folder, after one warning, if others could write there."""
    folder = files.cache_root() / "native"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder = folder.resolve()  # from here on no link is followed that somebody could change
    fault = _who_else_writes(folder)
    if fault is None:
        return folder
    warnings.warn(
        f"{fault}, so libraries in {folder} are not loaded; the C++ sources are built for this process only. "
        f"Set ${files.CACHE_VARIABLE} to a folder of your own, or UNCOLLAPSE_NATIVE=0 to do without them.",
        stacklevel=2,
    )
    return Path(_temporary_folder().name)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Mode 0700, removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="uncollapse-native-")


def _who_else_writes(folder: Path) -> str | None:
    """Why somebody else could put a file into a folder or replace the folder; None if nobody can, root aside."""
    if not hasattr(os, "geteuid"):  # Windows: the cache lies in the user's profile, which others cannot write to
        return None
    user = os.geteuid()
    for path in (folder, *folder.parents):
        about, above = path.stat(), path != folder
        if about.st_uid != user and not (above and about.st_uid == 0):
            return f"{path} belongs to another user"
        if above and about.st_mode & stat.S_ISVTX:  # like /tmp: others may write there, but not rename what is ours
            continue
        if about.st_mode & (stat.S_IWOTH if above else stat.S_IWOTH | stat.S_IWGRP):
            return f"{path} can be written by others"
    return None


def _is_as_built(library: Path) -> bool:
    """Whether a library has the digest that was noted when it was built; one that is damaged would kill the process."""
    try:
        with library.open("rb") as file:
            return _digest_file(library).read_text() == hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return False


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def compiler() -> str:
    """The C++ compiler that the tiles are built with: $CXX, else the first that is found."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"


def _command() -> list[str]:
    home = Path(torch.__file__).parent
    return [
        *compiler().split(),
        *("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp", "-w"),
        *VECTOR_FLAGS.get(torch.backends.cpu.get_cpu_capability(), ()),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{home / 'include' / sub}" for sub in (".", "torch/csrc/api/include")),
        *(f"-L{home / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10"),
    ]


def _build(name: str, command: list[str], library: Path) -> None:
    started = time.monotonic()
    print(f"uncollapse: compiling the {LIBRARIES[name]}, once ...", end="", file=sys.stderr, flush=True)
    try:
        with files.replacing(library) as new:
            source = str(FOLDER / f"{name}.cpp")
            run = subprocess.run([*command[:1], source, *command[1:], "-o", str(new)], capture_output=True, text=True)
            if run.returncode:
                raise RuntimeError(_first_error(run.stderr) or f"{command[0]} ended with code {run.returncode}")
            digest = hashlib.sha256(new.read_bytes()).hexdigest()
        files.write(_digest_file(library), digest)
    finally:
        print(f" {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _first_error(text: str) -> str:
    return next((line for line in text.splitlines() if "error" in line), "")
