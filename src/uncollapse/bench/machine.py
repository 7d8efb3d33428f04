"""What a measurement was made with: versions, processor, threads, time."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from uncollapse import __version__

PACKAGES = ("torch", "transformers", "x-transformers", "numpy")


def describe_machine() -> dict[str, object]:
    """Versions, processor, threads and date, for the record.

    >>> sorted(describe_machine())[:3]
    ['cores', 'date', 'memory_gb']
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "uncollapse": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "processor": _processor(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": _memory_gb(),
        "system": platform.platform(),
    }


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    except (AttributeError, ValueError):  # Windows has no sysconf
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"  # not Linux
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
