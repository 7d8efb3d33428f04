"""Which tensors the Triton kernels serve, and whether they are to be used on this machine. Imports no Triton itself."""

from __future__ import annotations

import importlib.util
import logging
import os

import torch
from torch import Tensor

from .._compiling import constant_result
from .configs import SIZES, generation
from .verification import is_verified

SWITCH = "UNCOLLAPSE_TRITON"  # 0: never; 1: always; not set: where `uncollapse gpu-test` has passed
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OFFSETS = 1 << 31  # inside a head offsets have 32 bits

_log = logging.getLogger(__name__)


def serves(q: Tensor, attn_mask: Tensor | None, v: Tensor | None = None) -> bool:
    """Whether the kernels are switched on and can run one layer on these tensors; if not, a debug message says why."""
    if not _switched_on(q.device.type, q.device.index):
        return False
    reason = _obstacle(q, attn_mask, q if v is None else v)
    if reason is not None:
        say_fallback(reason)
    return reason is None


def say_fallback(reason: str) -> None:
    """Note why torch operations run in place of the kernels."""
    if not torch.compiler.is_compiling():
        _log.debug("torch operations run this layer, not the Triton kernels: %s", reason)


@constant_result
def _switched_on(device_type: str, index: int | None) -> bool:
    """Whether the machine has what the kernels need, and they are wanted there."""
    switch = os.environ.get(SWITCH)
    if switch == "0" or (device_type, switch) == ("cpu", None) or device_type not in ("cpu", "cuda"):
        return False
    if importlib.util.find_spec("triton") is None:
        _log.debug("the Triton kernels are not used: the package triton is not installed")
        return False
    if device_type == "cpu":
        return switch == "1" and os.environ.get("TRITON_INTERPRET") == "1"
    device = torch.device(device_type) if index is None else torch.device(device_type, index)
    if generation(device) is None:
        _log.debug("the Triton kernels are not used: they need a GPU of capability 8.0 or higher")
        return False
    if switch == "1" or is_verified(device):
        return True
    _log.debug("the Triton kernels are not used: run `uncollapse gpu-test` once on this machine, or set %s=1", SWITCH)
    return False


def _obstacle(q: Tensor, attn_mask: Tensor | None, v: Tensor) -> str | None:
    """Why the kernels cannot run a layer on these tensors, or None."""
    if q.dtype not in DTYPES:
        return f"inputs are {q.dtype}"
    smallest, largest = SIZES
    for size in (q.shape[-1], v.shape[-1]):
        if not smallest <= size <= largest:
            return f"a head size of {size} is outside {smallest} to {largest}"
    if attn_mask is not None and attn_mask.requires_grad:
        return "the mask needs a gradient"
    queries, keys = q.shape[2], v.shape[2]
    if 0 in (q.shape[0], queries, keys):
        return "there are no tokens"
    if max(queries, keys) * max(keys, *q.stride()[2:], *v.stride()[2:]) >= OFFSETS:
        return f"{queries} x {keys} scores need offsets of more than 32 bits"
    return None
