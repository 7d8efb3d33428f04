"""Images to train on: embedded digits, arrays (.npz) of a folder or `$UNCOLLAPSE_DATA`, or what `datasets` loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from uncollapse.extras import require

from .arrays import read_arrays
from .text import SPLITS, find_data, load_rows

HUB_NAMES = {  # short names of the recipes
    "cifar-10": "uoft-cs/cifar10",
    "cifar-100": "uoft-cs/cifar100",
    "imagenet-1k": "ILSVRC/imagenet-1k",
    "flowers102": "dpdl-benchmark/oxford_flowers102",
}
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NORMALISATION: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # mean and deviation of pixels in [0, 1]
    "cifar-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar-100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet-1k": IMAGENET,
    "digits": ((0.305,), (0.376,)),
}
HOLD_OUT = 10  # every tenth image validates where no split is given
LABEL_COLUMNS = ("label", "labels", "fine_label")
LARGEST_LABEL = 1_000_000  # ImageNet-21k has 21,841 classes
IMAGE_COLUMNS = ("image", "img", "images")


class ArrayImages(Dataset[dict[str, Any]]):
    """Images (N, H, W, C) of bytes in memory: items `pixel_values` (C, H, W), uint8, and `labels`."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        if images.ndim == 3:
            images = images[..., None]
        if images.ndim != 4 or not images.size or images.dtype != np.uint8 or labels.shape != images.shape[:1]:
            raise ValueError(
                "expected images as uint8 (N, H, W, C) and as many labels, "
                f"got {images.dtype} {images.shape} and {labels.shape} labels."
            )
        self.images = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        self.labels = torch.from_numpy(labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": self.images[index], "labels": int(self.labels[index])}


class RowImages(Dataset[dict[str, Any]]):
    """Images of a dataset that `datasets` loaded, decoded on access; items as in `ArrayImages`, sizes may differ."""

    def __init__(self, rows: Any, image: str, label: str) -> None:
        self.rows, self.image, self.label = rows, image, label

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[int(index)]
        pixels = np.asarray(row[self.image].convert("RGB"))
        return {"pixel_values": torch.from_numpy(pixels.transpose(2, 0, 1).copy()), "labels": int(row[self.label])}


@dataclass(frozen=True)
class ImageData:
    """Images to train and validate on, and what a model needs to know about them."""

    name: str
    train: Dataset[dict[str, Any]]
    valid: Dataset[dict[str, Any]]
    class_names: tuple[str, ...]
    size: int | None  # pixels per side; None if it differs between images
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def load_images(name: str) -> ImageData:
    """The images called `name`.

    Args:
        name: "digits" (scikit-learn's 8 x 8 digits); the path of a folder with train and test .npz (`images`, `labels`)
            or of a folder that `datasets` reads, such as one with a folder of pictures for each class; a folder of
            $UNCOLLAPSE_DATA; or a dataset on the hub. They are tried in this order. The original CIFAR files are
            pickles, which can run code when they are read, and are refused.

    >>> data = load_images("digits")
    >>> len(data.train), len(data.valid), data.size, data.train[0]["pixel_values"].shape
    (1617, 180, 8, torch.Size([1, 8, 8]))
    """
    if name == "digits":
        return _digits()
    path = find_data(name)
    if path is not None and path.is_file():
        path = path.parent
    if path is not None and any(path.glob("*.npz")):
        return _from_arrays(name, path)
    if path is not None and any(path.glob("data_batch_*")):
        raise ValueError(f"{path} holds CIFAR's pickles, which are not read for safety; convert them to .npz first.")
    repository, _, configuration = HUB_NAMES.get(name, name).partition(":")
    return _from_datasets(name, str(path) if path else repository, configuration or None)


class ImageCollator:
    """Collates items: resized so that the shorter side fits, cropped to the centre, normalised; nothing is random.

    Args:
        image_size: pixels per side.
        mean: of pixels in [0, 1], one number per channel.
        std: standard deviation, likewise.
        channels: of the model; images with one channel are repeated.

    >>> data = load_images("digits")
    >>> batch = ImageCollator(16, data.mean, data.std, channels=3)([data.train[0], data.train[1]])
    >>> batch["pixel_values"].shape, batch["labels"]
    (torch.Size([2, 3, 16, 16]), tensor([1, 2]))
    """

    def __init__(self, image_size: int, mean: Sequence[float], std: Sequence[float], channels: int = 3) -> None:
        self.image_size, self.channels = image_size, channels
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """The batch: `pixel_values` (B, C, S, S) in float32 and `labels` (B,)."""
        images = [item["pixel_values"] for item in items]
        if len({image.shape for image in images}) == 1:
            pixels = self._square(torch.stack(images))
        else:
            pixels = torch.cat([self._square(image[None]) for image in images])
        pixels = (pixels - self.mean) / self.std
        if pixels.shape[1] == 1:
            pixels = pixels.expand(-1, self.channels, -1, -1).contiguous()
        return {"pixel_values": pixels, "labels": torch.tensor([item["labels"] for item in items])}

    def _square(self, images: Tensor) -> Tensor:
        """Bytes (B, C, H, W) as (B, C, S, S) in [0, 1]."""
        pixels = images.float() / 255.0
        height, width = pixels.shape[-2:]
        if (height, width) == (self.image_size, self.image_size):
            return pixels
        factor = self.image_size / min(height, width)
        size = [max(self.image_size, round(side * factor)) for side in (height, width)]
        pixels = functional.interpolate(pixels, size, mode="bilinear", antialias=True).clamp_(0.0, 1.0)
        top, left = ((side - self.image_size) // 2 for side in size)
        return pixels[..., top : top + self.image_size, left : left + self.image_size]


def _digits() -> ImageData:
    require("sklearn")
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255.0 / 16.0)).astype(np.uint8)
    train, valid = _hold_out(images, digits.target)
    return _image_data("digits", train, valid, tuple(str(number) for number in range(10)))


def _hold_out(images: np.ndarray, labels: np.ndarray) -> tuple[ArrayImages, ArrayImages]:
    held = np.arange(len(labels)) % HOLD_OUT == 0
    return ArrayImages(images[~held], labels[~held]), ArrayImages(images[held], labels[held])


def _image_data(name: str, train: ArrayImages, valid: ArrayImages, class_names: tuple[str, ...]) -> ImageData:
    _, channels, height, width = train.images.shape
    mean, std = normalisation(name, channels)
    return ImageData(name, train, valid, class_names, height if height == width else None, channels, mean, std)


def normalisation(name: str, channels: int = 3) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of a dataset's pixels in [0, 1]; ImageNet's for colour images that are not listed.

    >>> normalisation("cifar-10")[0]
    (0.4914, 0.4822, 0.4465)
    """
    known = NORMALISATION.get(Path(name).name)
    if known is not None and len(known[0]) == channels:
        return known
    return IMAGENET if channels == 3 else ((0.5,) * channels, (0.5,) * channels)


def _from_arrays(name: str, folder: Path) -> ImageData:
    files = sorted(folder.glob("*.npz"))
    splits = {
        split: next((file for file in files if file.stem.lower().startswith(names)), None)
        for split, names in SPLITS.items()
    }
    train_file, valid_file = splits["train"], splits["valid"] or splits["test"]
    if train_file is None:
        found = ", ".join(file.name for file in files)
        raise ValueError(f"{folder} holds {found}; a file train*.npz with images and labels is needed.")
    images, labels, names = _arrays(train_file)
    if valid_file is None:
        train, valid = _hold_out(images, labels)
    else:
        train, valid = ArrayImages(images, labels), ArrayImages(*_arrays(valid_file)[:2])
    names = names or tuple(str(number) for number in range(int(labels.max()) + 1))
    largest = max(int(part.labels.max()) for part in (train, valid))
    if largest >= len(names):
        raise ValueError(f"{folder} has the label {largest} and {len(names)} classes, which are counted from 0.")
    return _image_data(name, train, valid, names)


def _arrays(file: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    arrays = read_arrays(file)
    if not {"images", "labels"} <= arrays.keys():
        raise ValueError(f"{file} holds {', '.join(arrays) or 'nothing'}; images and labels are needed.")
    images, labels = arrays["images"], arrays["labels"]
    whole = labels.dtype.kind in "iu" and labels.size and labels.min() >= 0 and labels.max() <= LARGEST_LABEL
    if not whole or labels.shape != images.shape[:1]:
        raise ValueError(
            f"the labels in {file} must be whole numbers from 0 to {LARGEST_LABEL:,}, one for each image, "
            f"got {labels.dtype} {labels.shape} for images {images.shape}."
        )
    return images, labels, tuple(str(name) for name in arrays.get("class_names", ()))


def _from_datasets(name: str, path: str, configuration: str | None) -> ImageData:
    rows = load_rows(
        name, path, configuration, "a folder with train.npz and test.npz, or with a folder for each class,"
    )
    if "train" not in rows:
        raise ValueError(f"{name} has the splits {', '.join(rows)}; a split named train is needed.")
    train = rows["train"]
    valid = next((rows[key] for key in (*SPLITS["valid"], *SPLITS["test"]) if key in rows), None)
    if valid is None:
        numbers = np.arange(len(train))
        train, valid = train.select(numbers[numbers % HOLD_OUT != 0]), train.select(numbers[numbers % HOLD_OUT == 0])
    columns = tuple(train.features)
    image = next((key for key in IMAGE_COLUMNS if key in columns), None)
    label = next((key for key in LABEL_COLUMNS if key in columns), None)
    if image is None or label is None:
        raise ValueError(f"{name} has the columns {', '.join(columns)}; an image and a label are needed.")
    names = getattr(train.features[label], "names", None)
    if names is None:
        labels = train[label]
        if not all(isinstance(value, int) and 0 <= value <= LARGEST_LABEL for value in labels):
            raise ValueError(f"the column {label} of {name} must hold whole numbers from 0 to {LARGEST_LABEL:,}.")
        names = [str(number) for number in range(max(labels) + 1)]
    mean, std = normalisation(name)
    return ImageData(
        name, RowImages(train, image, label), RowImages(valid, image, label), tuple(names), None, 3, mean, std
    )
