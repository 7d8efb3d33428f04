"""Random layers of attention with scores that are exact in float32: small whole numbers, scaled by a power of two."""

import torch

from uncollapse.attention.masking import Masking
from uncollapse.attention.scores import QueryKeyScores

SCALES = [0.0, 2.0**-6, 2.0**-3, 1.0, 2.0**5, 2.0**10]  # alike to far apart; the largest scores are about 1e5
MASKS = ("none", "causal", "padding", "window", "by head", "blind rows")


def random_layer(number):
    """The scores, the mask, and which keys each row sees, (B, H, Q, K)."""
    maker = torch.Generator().manual_seed(number)

    def drawn(low, high):
        return int(torch.randint(low, high + 1, (), generator=maker))

    kind = MASKS[number % len(MASKS)]
    batch, groups, shared, size = drawn(1, 3), drawn(1, 2), drawn(1, 3), drawn(1, 9)
    queries = drawn(1, 150) if number % 7 else drawn(1, 3)
    keys = queries if kind == "causal" else drawn(1, 150)
    if number % 97 == 0:
        keys = 5_000  # longer than a chunk of sums
    heads = groups * shared
    # heads next to each other in memory, as models have them
    q = torch.randint(-3, 4, (batch, queries, heads, size), generator=maker).float().transpose(1, 2)
    k = torch.randint(-3, 4, (batch, keys, groups, size), generator=maker).float().transpose(1, 2)
    seen, real = torch.ones(batch, heads, queries, keys, dtype=torch.bool), None
    columns = torch.arange(keys)
    masking = Masking()
    if kind == "causal":
        seen, masking = seen.tril(), Masking(is_causal=True)
    elif kind == "padding":
        lengths = torch.randint(0, keys + 1, (batch, 1, 1, 1), generator=maker)
        visible = columns >= lengths if drawn(0, 1) else columns < lengths
        real = torch.rand(batch, queries, generator=maker) < 0.8
        seen, masking = visible.expand(seen.shape) & real[:, None, :, None], Masking(visible=visible, real=real)
    elif kind in ("window", "by head", "blind rows"):
        firsts = torch.randint(0, keys, (1, heads if kind == "by head" else 1, queries, 1), generator=maker)
        widths = torch.randint(0 if kind == "blind rows" else 1, 40, firsts.shape, generator=maker)
        visible = (columns >= firsts) & (columns < firsts + widths)
        seen, masking = visible.expand(seen.shape), Masking(visible=visible)
    return QueryKeyScores(q, k, SCALES[drawn(0, len(SCALES) - 1)]), masking, seen
