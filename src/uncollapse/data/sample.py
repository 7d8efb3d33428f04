"""The sample a model is diagnosed with when no data is given: real text and photographs that need no download."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from uncollapse.extras import require

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEQUENCES, LENGTH = 8, 256


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


def sample_for(model: PreTrainedModel) -> tuple[list[dict[str, Tensor]], str]:
    """Batches that fit the model, and a phrase that names them."""
    config = model.config
    if model.main_input_name == "pixel_values":
        size = config.image_size if isinstance(config.image_size, list | tuple) else (config.image_size,) * 2
        images = embedded_images(SEQUENCES, tuple(size))
        batches = [{"pixel_values": image[None]} for image in images]
        return batches, f"{SEQUENCES} crops of scikit-learn's two photographs"
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{type(model).__name__} takes {model.main_input_name}, for which there is no embedded sample; "
            "give batches."
        )
    length = min(LENGTH, getattr(config, "max_position_embeddings", None) or LENGTH)
    ids, how = _token_ids(model)
    rows = spread(ids, SEQUENCES, length)
    return [{"input_ids": row[None]} for row in rows], f"{SEQUENCES} x {length} tokens of Python's help texts ({how})"


def _token_ids(model: PreTrainedModel) -> tuple[Tensor, str]:
    """The embedded text with the model's own tokenizer, or byte by byte if it has none."""
    from .tokenizers import read_tokenizer

    vocabulary = model.config.vocab_size
    if model.name_or_path:
        try:
            tokenizer = read_tokenizer(model.name_or_path)
            ids = torch.tensor(tokenizer(embedded_text()[:60_000], add_special_tokens=False)["input_ids"])
            if len(ids) > LENGTH and int(ids.max()) < vocabulary:
                return ids, "its own tokenizer"
        except Exception:  # the hub, the parsers and the optional packages raise many kinds
            pass  # no usable tokenizer beside the weights; the report says that bytes were used
    return embedded_bytes(1, 60_000)[0] % vocabulary, "bytes as token ids: no tokenizer was found with the model"
