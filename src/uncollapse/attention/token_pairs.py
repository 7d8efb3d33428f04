"""Cosines of all pairs of tokens on CPUs, in one pass over products that are never held.

It stands here because the compiled sources do. The readable reference is `count_raw_and_centred` of
`uncollapse.metrics`, which takes `compiled_pairs` as its `count`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _native as native

WORTH = 1 << 16  # pairs below which a compiled pass saves less than a millisecond


def compiled_pairs(
    unit: Tensor, share: Tensor, inverse: Tensor, common: Tensor, bins: int
) -> tuple[Tensor, Tensor] | None:
    """Counts (2, bins) and sums (2,) of the raw and the centred cosines; None where C++ does not serve.

    Args:
        unit: centred tokens of length one, (T, M).
        share: the length of a centred token over that of the token, (T,).
        inverse: one over the length of the token, (T,).
        common: what the mean of all tokens adds to a token's products, over its length, (T,).
        bins: of equal width over [-1, 1].
    """
    is_plain = unit.device.type == "cpu" and unit.dtype == torch.float32
    if not is_plain or len(unit) ** 2 < WORTH or not native.available("token_pairs"):
        return None
    factors = (one.contiguous() for one in (unit, share, inverse, common))
    counts, sums = native.operators("token_pairs").count_pairs(*factors, bins=bins)
    return counts, sums
