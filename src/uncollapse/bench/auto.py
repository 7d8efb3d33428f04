"""Which backend `backend="auto"` would choose for a shape with the memory that is free now."""

from __future__ import annotations

import torch

from uncollapse.attention.memory import FREE_SHARE, carried_bytes, fitting_backend, free_bytes, reversible_bytes

from .stack_shape import StackShape


def auto_choice(shape: StackShape) -> list[str]:
    """One sentence for training and one for a forward pass without gradients.

    >>> auto_choice(StackShape(length=64))[1]
    'auto chooses carried for a forward pass without gradients: its scores need 0.0 GB, ... GB may be used here.'
    """
    q = torch.empty(shape.batch, shape.heads, shape.length, shape.size, device="meta")
    usable = FREE_SHARE * free_bytes(torch.device("cpu"))
    sentences = []
    for training, work in ((True, "training"), (False, "a forward pass without gradients")):
        needed = carried_bytes(q, q, shape.causal, shape.layers, needs_gradient=training)
        name = fitting_backend(usable, needed, reversible_bytes(q, q, shape.causal) if training else None)
        sentences.append(
            f"auto chooses {name} for {work}: {'its' if name == 'carried' else 'the'} scores "
            f"{'need' if name == 'carried' else 'of carried would need'} {needed / 1e9:.1f} GB, "
            f"{usable / 1e9:.1f} GB may be used here."
        )
    return sentences
