"""Memory of scores: what `carried` needs, which backend `auto` takes for it, and how to give memory back."""

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
ALWAYS_FITS = 64 << 20  # bytes below which the system is not asked, so that decoding a token stays cheap

_log = logging.getLogger(__name__)


def carried_bytes(q: Tensor, k: Tensor, is_causal: bool, depth: int | None, needs_gradient: bool) -> int:
    """Score memory of `carried`: a matrix a layer for the backward pass, else one for all layers."""
    matrices = (depth or ASSUMED_DEPTH) if needs_gradient else 1
    per_head = ScoreLayout(q.shape[2], k.shape[2], is_causal).per_head
    return matrices * q.shape[0] * q.shape[1] * per_head * score_dtype(q.dtype).itemsize


def free_bytes(device: torch.device) -> int:
    """Memory that can be had on a device without pushing anything out."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        import psutil  # type: ignore[import-untyped]  # not a dependency; it counts what caches would give back
    except ImportError:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(psutil.virtual_memory().available)


def choose(q: Tensor, k: Tensor, is_causal: bool, depth: int | None) -> str:
    """`carried` or `stacked`, for all layers that follow."""
    needs_gradient = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    needed = carried_bytes(q, k, is_causal, depth, needs_gradient)
    if needed <= ALWAYS_FITS or torch.compiler.is_compiling():
        return "carried"
    free = free_bytes(q.device)
    name = "carried" if needed <= FREE_SHARE * free else "stacked"
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


def release_memory() -> None:
    """Return the score buffers that wait to be used again to the operating system.

    On the CPU, buffers are kept from step to step because fresh memory is slow. Call this between two models, or
    before memory is measured.

    >>> import uncollapse as uc
    >>> uc.release_memory()
    """
    POOL.release()
