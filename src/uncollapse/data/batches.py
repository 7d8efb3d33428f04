"""Batches for a diagnosis from a file or a dataset: text, JSON lines, arrays, anything `datasets` loads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from uncollapse.extras import require
from uncollapse.files import json_object

from .arrays import read_arrays
from .readers import Reader, find_reader
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
            return _from_arrays(model, path, sequences, length)
        if path.suffix in (".jsonl", ".json"):
            return _from_rows(model, _json_lines(path), str(path), tokenizer, sequences, length)
        return _from_text(model, read_text(path), str(path), tokenizer, sequences, length)
    if path.suffix or len(path.parts) > 2:
        raise ValueError(f"there is no file {data}.")
    return _from_rows(model, _dataset(data, sequences), data, tokenizer, sequences, length)


def _from_text(
    model: PreTrainedModel, text: str, source: str, tokenizer: str | None, sequences: int, length: int
) -> list[dict[str, Tensor]]:
    reader = _reader(model, tokenizer)
    length = _at_most(model, length)
    ids = reader.ids(text[: 12 * sequences * length], False)  # a token is rarely longer
    pieces = [ids[start : start + length] for start in range(0, len(ids), length)][:sequences]
    pieces = [piece for piece in pieces if len(piece) >= 2]
    if not pieces:
        raise ValueError(f"{source} holds fewer than two tokens.")
    return [_tokens(model, piece, source) for piece in pieces]


def _from_rows(
    model: PreTrainedModel,
    rows: Iterable[dict[str, Any]],
    source: str,
    tokenizer: str | None,
    sequences: int,
    length: int,
) -> list[dict[str, Tensor]]:
    batches: list[dict[str, Tensor]] = []
    reader = None
    length = _at_most(model, length)
    for row in rows:
        if isinstance(row.get("input_ids"), Sequence):
            ids = row["input_ids"][:length]
        elif isinstance(row.get("text"), str):
            reader = reader or _reader(model, tokenizer)
            text = row["text"].encode("utf-8", "replace").decode()  # JSON can hold half a character, tokenizers cannot
            ids = reader.ids(text, True)[:length]
        elif any(key in row for key in ("image", "img")):
            batches.append(_image(model, row["image"] if "image" in row else row["img"], source))
            continue
        else:
            raise ValueError(
                f"a row of {source} has the fields {', '.join(row)}; one of text, input_ids, image is needed."
            )
        if len(ids) >= 2:
            batches.append(_tokens(model, ids, source))
        if len(batches) == sequences:
            break
    if not batches:
        raise ValueError(f"{source} holds no sequence of at least two tokens.")
    return batches[:sequences]


def _json_lines(path: Path) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            yield json_object(line, f"line {number} of {path}")


def _from_arrays(model: PreTrainedModel, path: Path, sequences: int, length: int) -> list[dict[str, Tensor]]:
    arrays = read_arrays(path)
    for name, batch in (("images", _image), ("input_ids", _tokens)):
        if name not in arrays:
            continue
        rows = arrays[name]
        if rows.ndim < 2 or not rows.size:
            raise ValueError(f"{name} in {path} must be an array of one row per sequence or image, got {rows.shape}.")
        cut = rows[:sequences, : _at_most(model, length)] if name == "input_ids" else rows[:sequences]
        return [batch(model, row.tolist() if name == "input_ids" else row, str(path)) for row in cut]
    raise ValueError(f"{path} holds {', '.join(arrays) or 'nothing'}; `images` or `input_ids` is needed.")


def _at_most(model: PreTrainedModel, length: int) -> int:
    """`length`, or the number of positions of the model if that is smaller."""
    return min(length, getattr(model.config, "max_position_embeddings", None) or length)


def _tokens(model: PreTrainedModel, ids: Sequence[Any], source: str) -> dict[str, Tensor]:
    """A batch of one sequence, if the model has all of its tokens."""
    _check_input(model, "input_ids", source)
    vocabulary = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise ValueError(
                f"input_ids of {source} must be whole numbers from 0 to {vocabulary - 1:,}, which the model has, "
                f"got {str(token)[:40]}."
            )
    return {"input_ids": torch.tensor([ids])}


def _image(model: PreTrainedModel, image: Any, source: str) -> dict[str, Tensor]:
    """A batch of one image (H, W, C) or (H, W) of bytes, as the model takes it: (1, C, size, size)."""
    _check_input(model, "pixel_values", source)
    array = np.asarray(image)
    array = array[..., None] if array.ndim == 2 else array
    channels = getattr(model.config, "num_channels", 3)
    if array.ndim != 3 or not array.size or array.dtype.kind not in "uif" or 1 < array.shape[-1] < channels:
        raise ValueError(
            f"an image of {source} must be numbers (height, width, channels) with 1 or {channels} channels, "
            f"got {array.dtype} {array.shape}."
        )
    pixels = torch.from_numpy(np.ascontiguousarray(array)).permute(2, 0, 1)[None].float() / 255.0
    pixels = pixels.expand(-1, channels, -1, -1) if pixels.shape[1] == 1 else pixels[:, :channels]
    size = model.config.image_size
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    return {"pixel_values": functional.interpolate((pixels - MEAN) / STD, size, mode="bilinear", antialias=True)}


def _check_input(model: PreTrainedModel, name: str, source: str) -> None:
    if model.main_input_name != name:
        raise ValueError(f"{source} holds {name}, and {type(model).__name__} takes {model.main_input_name}.")


def _reader(model: PreTrainedModel, name: str | None) -> Reader:
    where = name or model.name_or_path
    reader = find_reader(where) if where else None
    if reader is None:
        raise ValueError(f"no tokenizer was found at {where or 'the model'}; give one with --tokenizer.")
    return reader


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
