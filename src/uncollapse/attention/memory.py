"""Memory of scores: how much `carried` needs, which backend `auto` picks for it, and how to release it."""

from __future__ import annotations

import logging
import os

import torch
from torch import Tensor

from ._pool import POOL
from ._tiling import ScoreLayout
from .state import score_dtype

FREE_SHARE = 0.5  # of the free memory that score matrices may take; the rest is the model's
ASSUMED_DEPTH = 24  # layers, where the caller gives no hint
ASSUMED_FREE = 4 << 30  # bytes, where neither psutil nor the system reports free memory
ALWAYS_FITS = 64 << 20  # bytes below which the system is not asked, so that decoding a token stays cheap

_log = logging.getLogger(__name__)


def scores_per_head(queries: int, keys: int, is_causal: bool) -> int:
    """How many scores `carried` stores for one head; a causal layer leaves out the tiles above the diagonal.

    >>> scores_per_head(128, 128, is_causal=False), scores_per_head(128, 128, is_causal=True)
    (16384, 12288)
    """
    return ScoreLayout(queries, keys, is_causal).per_head


def carried_bytes(
    q: Tensor, k: Tensor, is_causal: bool, depth: int | None, needs_gradient: bool, stored: torch.dtype | None = None
) -> int:
    """Score memory of `carried`: one matrix per layer with gradients, one for all layers without."""
    matrices = (depth or ASSUMED_DEPTH) if needs_gradient else 1
    per_head = scores_per_head(q.shape[2], k.shape[2], is_causal)
    return matrices * q.shape[0] * q.shape[1] * per_head * (stored or score_dtype(q.dtype)).itemsize


def free_bytes(device: torch.device) -> int:
    """Memory available on a device without swapping; `ASSUMED_FREE` on systems that do not report it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        import psutil  # type: ignore[import-untyped]  # not a dependency; it also counts memory that caches would free
    except ImportError:
        pass
    else:
        return int(psutil.virtual_memory().available)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # no sysconf on Windows, no such name on macOS
        _log.debug("free memory is not known here; %.0f GB are assumed", ASSUMED_FREE / 1e9)
        return ASSUMED_FREE


def held_bytes() -> int:
    """Score memory that is kept for reuse and not in use now; `release_memory` frees it."""
    return POOL.held_bytes()


def release_memory() -> None:
    """Return score buffers that are kept for reuse to the operating system.

    On the CPU, buffers are reused from step to step because fresh memory is slow. Call this between two models, or
    before measuring memory.

    >>> import uncollapse as uc
    >>> uc.release_memory()
    """
    POOL.release()


def reversible_bytes(q: Tensor, k: Tensor, is_causal: bool) -> int:
    """Score memory of `reversible` in training: one matrix and its gradient, whatever the depth."""
    return carried_bytes(q, k, is_causal, 2, needs_gradient=True)


def choose_backend(
    q: Tensor,
    k: Tensor,
    is_causal: bool,
    depth: int | None,
    stored: torch.dtype | None = None,
    can_reverse: bool = False,
) -> str:
    """The backend that `auto` uses in all layers: `carried` if its scores fit, else `reversible`, else `stacked`."""
    needs_gradient = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    needed = carried_bytes(q, k, is_causal, depth, needs_gradient, stored)
    if needed <= ALWAYS_FITS or torch.compiler.is_compiling():
        return "carried"
    free = free_bytes(q.device)
    name = fitting_backend(
        FREE_SHARE * free, needed, reversible_bytes(q, k, is_causal) if needs_gradient and can_reverse else None
    )
    _log.debug(
        "backend auto takes %s: the scores of %s layers%s need %.0f MB, %.0f %% of %.0f MB free may be used",
        name,
        depth or f"an assumed {ASSUMED_DEPTH}",
        "" if needs_gradient else " in one buffer",
        needed / 1e6,
        100 * FREE_SHARE,
        free / 1e6,
    )
    return name


def fitting_backend(usable: float, carried: float, reversible: float | None) -> str:
    """The fastest backend whose scores fit into `usable` bytes; `reversible` is None where it cannot serve.

    >>> fitting_backend(8e9, carried=20e9, reversible=3e9)
    'reversible'
    """
    if carried <= usable:
        return "carried"
    return "reversible" if reversible is not None and reversible <= usable else "stacked"
