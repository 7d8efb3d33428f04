"""The size of the residual stream at initialisation, by what alpha multiplies.

A pre-norm block adds to its stream x the attention output a, and then the output m of the feed-forward net. With the
visible skip the first sum becomes

    stream   (1 + alpha) x + (1 - alpha) a
    normed   x + alpha LN(x) + (1 - alpha) a
    replace  alpha x + (1 - alpha) a

LN(x) is x divided by its size s (the standard deviation of its components). At initialisation a and m are independent
of x, and since both read a normalised stream, their sizes depend on the weights alone. So s obeys a scalar recursion,
and what is left of the embedding x_0 in the stream obeys another.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

StreamSkip = Literal["none", "stream", "normed", "replace"]


class StreamSizes(NamedTuple):
    """By depth, (layers + 1,): the size of the stream, and the share of its square that is not the embedding's."""

    size: NDArray[np.float64]
    block_share: NDArray[np.float64]


def stream_sizes(
    skip: StreamSkip, alpha: float, layers: int, embedding: float, attention: float, feed_forward: float
) -> StreamSizes:
    """Size of the stream after each block at initialisation, and the share of it that blocks have written.

    Args:
        skip: what alpha multiplies; "none" is the stock block.
        alpha: weight of the visible skip.
        layers: number of blocks.
        embedding: size of the stream before the first block.
        attention: size of the attention output a.
        feed_forward: size of the feed-forward output m.

    With nothing written the size is embedding (1 + alpha)^n (stream), embedding + alpha n (normed) or
    embedding alpha^n (replace).

    >>> for skip in ("stream", "normed", "replace"):
    ...     found = stream_sizes(skip, 0.5, layers=6, embedding=0.03, attention=0.0, feed_forward=0.0)
    ...     print(skip, found.size[-1].round(4))
    stream 0.3417
    normed 3.03
    replace 0.0005
    """
    if skip not in ("none", "stream", "normed", "replace"):
        raise ValueError(f'skip must be "none", "stream", "normed" or "replace", got {skip!r}.')
    kept, size = embedding, embedding  # of the embedding, and of the whole stream
    sizes, shares = [size], [0.0]
    weight = 1.0 if skip == "none" else 1.0 - alpha
    for _ in range(layers):
        factor = {"none": 1.0, "stream": 1.0 + alpha, "normed": 1.0 + alpha / size, "replace": alpha}[skip]
        kept *= factor
        size = float(np.sqrt((factor * size) ** 2 + (weight * attention) ** 2 + feed_forward**2))
        sizes.append(size)
        shares.append(1.0 - (kept / size) ** 2)
    return StreamSizes(np.array(sizes), np.array(shares))
