"""Whether `uncollapse gpu-test` has passed on a device, with this driver, torch, Triton and these kernels."""

from __future__ import annotations

import functools
import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from uncollapse import files

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
SOURCES = ("tile_functions.py", "carried_kernels.py", "stacked_kernels.py", "configs.py", "launch.py")


def identity(device: torch.device) -> dict[str, str]:
    """What a result depends on: another value of any of them, and the test has to be run again."""
    folder = Path(__file__).parent
    sources = b"".join((folder / name).read_bytes() for name in SOURCES)
    return {
        "device": torch.cuda.get_device_name(device),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
        "driver": driver_version(),
        "torch": torch.__version__,
        "triton": triton_version() or "not installed",
        "kernels": hashlib.sha256(sources).hexdigest()[:16],
    }


def driver_version() -> str:
    """The version of HIP, or the line in which NVIDIA's driver names itself; without one, that of torch's CUDA."""
    if torch.version.hip is not None:
        return f"HIP {torch.version.hip}"
    try:
        return NVIDIA_DRIVER.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError, UnicodeDecodeError):  # not Linux, or no driver
        return f"CUDA {torch.version.cuda}"


def triton_version() -> str | None:
    """The version of the package triton (of ROCm's build of it on AMD), or None without it."""
    for package in ("triton", "pytorch-triton-rocm", "pytorch-triton"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def result_file(about: dict[str, str]) -> Path:
    """Where the result for a device is kept."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    return files.cache_root() / "gpu" / f"{digest}.json"


def save_result(about: dict[str, str], passed: bool, **more: Any) -> Path:
    """Keep the result of a test, in place of an earlier one."""
    path = result_file(about)
    files.write(path, json.dumps({"passed": passed, "identity": about, **more}, indent=1) + "\n")
    is_verified.cache_clear()
    return path


@functools.cache
def is_verified(device: torch.device) -> bool:
    """Whether the test has passed on this device as it is now."""
    try:
        about = identity(device)
        result = files.json_object(files.read_text(result_file(about)), "the result of gpu-test")
    except (OSError, ValueError, RuntimeError):  # no result, a damaged one, or no such device
        return False
    return result.get("passed") is True and result.get("identity") == about
