"""Peak memory of a run, and whether a run fits at all.

The measure is the kernel's own: the largest resident set of this process (VmHWM in /proc/self/status), which writing 5
to /proc/self/clear_refs sets back to the present one. It sees every allocator. Memory that is asked for and never
touched does not count.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path

import torch

from uncollapse.attention.memory import free_bytes, release_memory

USABLE = 0.7  # of the free memory: a run that is estimated to need more is not started

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def peak_added(run: Callable[[], object]) -> int | None:
    """Bytes by which memory rose at the highest point of a run; None (after the run) where that cannot be measured.

    >>> added = peak_added(lambda: torch.ones(8 << 20))  # 34 MB; other threads may give some back meanwhile
    >>> added is None or added > 10e6
    True
    """
    settle()
    if not _can_reset():
        run()
        return None
    before = _kilobytes("VmRSS")
    run()
    return max(0, 1024 * (_kilobytes("VmHWM") - before))


def smallest_peak(run: Callable[[], object], times: int = 2) -> int | None:
    """The smallest `peak_added` of several runs: what the allocator has not given back only ever adds."""
    peaks = [peak for peak in (peak_added(run) for _ in range(times)) if peak is not None]
    return min(peaks, default=None)


def settle() -> None:
    """Give back what earlier runs have left behind, so that the next one has to take its memory afresh."""
    gc.collect()
    release_memory()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # no glibc; Windows cannot open the process itself
        return


def too_large(needed: float, free: float | None = None) -> str | None:
    """Why a run that needs `needed` bytes is not started, or None.

    >>> too_large(8e9, free=10e9)
    'not run: needs about 8.0 GB, and 70 % of the 10.0 GB free are 7.0 GB'
    """
    free = free_bytes(torch.device("cpu")) if free is None else free
    if needed <= USABLE * free:
        return None
    return (
        f"not run: needs about {needed / 1e9:.1f} GB, and {100 * USABLE:.0f} % of the {free / 1e9:.1f} GB free "
        f"are {USABLE * free / 1e9:.1f} GB"
    )


def _can_reset() -> bool:
    try:
        _RESET.write_text("5")
        return "VmHWM" in _STATUS.read_text()
    except OSError:
        return False


def _kilobytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), flags=re.MULTILINE)
    assert found, f"{_STATUS} has no {name}"
    return int(found[1])
