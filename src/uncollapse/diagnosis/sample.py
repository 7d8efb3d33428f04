"""Real English that is on every machine: the texts of Python's own help system. No download."""

from __future__ import annotations

import torch
from torch import Tensor


def embedded_text() -> str:
    """All help topics of this Python as one text (about 460,000 characters).

    >>> len(embedded_text()) > 100_000
    True
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def embedded_bytes(sequences: int, length: int) -> Tensor:
    """`sequences` pieces of `length` bytes, evenly spread over the text: (sequences, length), int64.

    >>> embedded_bytes(2, 8).shape
    torch.Size([2, 8])
    """
    data = torch.frombuffer(bytearray(embedded_text().encode()), dtype=torch.uint8).long()
    starts = torch.linspace(0, len(data) - length, sequences).long()
    return torch.stack([data[start : start + length] for start in starts])
