"""Batches for a diagnosis from a file or a dataset: text, JSON lines, arrays, anything `datasets` loads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from uncollapse.extras import require
from uncollapse.files import json_object

from .text import read_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MEAN, STD = 0.5, 0.5  # for pixels in [0, 1], as in ViT's own processor


def load_batches(
    model: PreTrainedModel, data: str, tokenizer: str | None = None, sequences: int = 16, length: int = 256
) -> list[dict[str, Tensor]]:
    """Up to `sequences` sequences (or images) of `data`, one per batch, as the model takes them.

    `data`: a text file (also .xz), JSON lines with a field `text` or `input_ids`, an .npz with `images` or `input_ids`,
    or the name of a dataset. Text is cut into pieces of `length` tokens.
    """
    path = Path(data)
    if path.is_file():
        if path.suffix == ".npz":
            return _from_arrays(model, path, sequences)
        if path.suffix in (".jsonl", ".json"):
            return _from_rows(model, _json_lines(path), str(path), tokenizer, sequences, length)
        return _from_text(model, read_text(path), str(path), tokenizer, sequences, length)
    if path.suffix or len(path.parts) > 2:
        raise ValueError(f"there is no file {data}.")
    return _from_rows(model, _dataset(data, sequences), data, tokenizer, sequences, length)


def _from_text(
    model: PreTrainedModel, text: str, source: str, tokenizer: str | None, sequences: int, length: int
) -> list[dict[str, Tensor]]:
    encode = _tokenizer(model, tokenizer)
    length = min(length, getattr(model.config, "max_position_embeddings", None) or length)
    ids = encode(text[: 12 * sequences * length], add_special_tokens=False)["input_ids"]  # a token is rarely longer
    pieces = [ids[start : start + length] for start in range(0, len(ids), length)][:sequences]
    pieces = [piece for piece in pieces if len(piece) >= 2]
    if not pieces:
        raise ValueError(f"{source} holds fewer than two tokens.")
    return [{"input_ids": torch.tensor([piece])} for piece in pieces]


def _from_rows(
    model: PreTrainedModel,
    rows: Iterable[dict[str, Any]],
    source: str,
    tokenizer: str | None,
    sequences: int,
    length: int,
) -> list[dict[str, Tensor]]:
    batches: list[dict[str, Tensor]] = []
    encode = None
    for row in rows:
        if "input_ids" in row:
            ids = list(row["input_ids"])[:length]
        elif isinstance(row.get("text"), str):
            encode = encode or _tokenizer(model, tokenizer)
            ids = encode(row["text"], truncation=True, max_length=length)["input_ids"]
        elif any(key in row for key in ("image", "img")):
            image = np.asarray(row["image"] if "image" in row else row["img"])
            batches.append({"pixel_values": _pixels(model, image[None])})
            continue
        else:
            raise ValueError(
                f"a row of {source} has the fields {', '.join(row)}; one of text, input_ids, image is needed."
            )
        if len(ids) >= 2:
            batches.append({"input_ids": torch.tensor([ids])})
        if len(batches) == sequences:
            break
    if not batches:
        raise ValueError(f"{source} holds no sequence of at least two tokens.")
    return batches[:sequences]


def _json_lines(path: Path) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            yield json_object(line, f"line {number} of {path}")


def _from_arrays(model: PreTrainedModel, path: Path, sequences: int) -> list[dict[str, Tensor]]:
    try:
        arrays = np.load(path, allow_pickle=False)
        names = list(arrays)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as .npz ({error}).") from None
    if "images" in names:
        return [{"pixel_values": _pixels(model, image[None])} for image in arrays["images"][:sequences]]
    if "input_ids" in names:
        return [{"input_ids": torch.from_numpy(row[None].astype(np.int64))} for row in arrays["input_ids"][:sequences]]
    raise ValueError(f"{path} holds {', '.join(names) or 'nothing'}; `images` or `input_ids` is needed.")


def _pixels(model: PreTrainedModel, images: np.ndarray) -> Tensor:
    """Images (N, H, W, C) of bytes as the model takes them: (N, C, size, size)."""
    if images.ndim == 3:
        images = images[..., None]
    channels = getattr(model.config, "num_channels", 3)
    pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 255.0
    pixels = pixels.expand(-1, channels, -1, -1) if pixels.shape[1] == 1 else pixels[:, :channels]
    size = model.config.image_size
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    return functional.interpolate((pixels - MEAN) / STD, size, mode="bilinear", antialias=True)


def _tokenizer(model: PreTrainedModel, name: str | None) -> Any:
    from transformers import AutoTokenizer

    where = name or model.name_or_path
    try:
        return AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except (OSError, ValueError, ImportError, KeyError, TypeError):
        raise ValueError(f"no tokenizer was found at {where or 'the model'}; give one with --tokenizer.") from None


def _dataset(name: str, sequences: int) -> Iterable[dict[str, Any]]:
    require("datasets")
    import datasets

    try:
        loaded = datasets.load_dataset(name, streaming=True)
        split = next(iter(loaded.values())) if isinstance(loaded, dict) else loaded
        return list(split.take(4 * sequences))
    except Exception as error:
        raise ValueError(
            f"there is no file {name}, and the dataset of that name cannot be loaded "
            f"({type(error).__name__}); give the path of a file."
        ) from None
