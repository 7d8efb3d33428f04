"""The sample a model is diagnosed with when no data is given: real text and photographs that need no download."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from uncollapse.extras import require


def embedded_topics() -> list[str]:
    """The help topics of this Python, in the order of their names.

    >>> len(embedded_topics()) > 50
    True
    """
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def embedded_text() -> str:
    """All help topics of this Python as one text (about 460,000 characters).

    >>> len(embedded_text()) > 100_000
    True
    """
    return "\n\n".join(embedded_topics())


def embedded_bytes(sequences: int, length: int) -> Tensor:
    """`sequences` pieces of `length` bytes, evenly spread over the text: (sequences, length), int64.

    >>> embedded_bytes(2, 8).shape
    torch.Size([2, 8])
    """
    data = torch.frombuffer(bytearray(embedded_text().encode()), dtype=torch.uint8).long()
    return spread(data, sequences, length)


def spread(ids: Tensor, sequences: int, length: int) -> Tensor:
    """`sequences` pieces of `length` ids, evenly spread over a long sequence: (sequences, length)."""
    starts = torch.linspace(0, len(ids) - length, sequences).long()
    return torch.stack([ids[start : start + length] for start in starts])


def embedded_images(count: int, size: tuple[int, int]) -> Tensor:
    """Crops of scikit-learn's two photographs, (count, 3, *size), values around 0 as vision models take them."""
    require("sklearn")
    from sklearn.datasets import load_sample_images

    photos = [
        torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 127.5 - 1.0 for image in load_sample_images().images
    ]
    crops = []
    for index in range(count):
        photo = photos[index % len(photos)]
        left = (photo.shape[2] - photo.shape[1]) * (index // len(photos)) // max(1, (count - 1) // len(photos))
        crop = photo[:, :, left : left + photo.shape[1]]
        crops.append(functional.interpolate(crop[None], size, mode="bilinear", antialias=True)[0])
    return torch.stack(crops)
