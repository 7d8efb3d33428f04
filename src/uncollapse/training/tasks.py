"""The task of a recipe: data sets, model, loss and metrics."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset
from transformers import EvalPrediction, PreTrainedModel, default_data_collator

from uncollapse.data.images import ArrayImages, ImageCollator, ImageData, load_images
from uncollapse.data.text import load_text
from uncollapse.data.tokens import TokenData, token_data

from .augmentation import Augmentation, Mixup, augment_batch
from .loss import ImageLoss
from .model import build_model, check_model, model_path
from .recipe import Recipe

TrainingBatch = dict[str, Tensor]
SAMPLED = 256  # images of a split that are decoded for its fingerprint


@dataclass(frozen=True)
class Task:
    """Data, model, loss and metrics of a run."""

    train: Dataset[Any]
    valid: Dataset[Any]
    collate: Callable[[list[Any]], TrainingBatch]
    build: Callable[[], PreTrainedModel]
    guessing: float  # loss of a uniform guess
    units: int  # tokens per sequence, or 1 per image
    unit: str  # "tokens" or "images"
    data_sha256: str
    augment: Callable[[TrainingBatch], TrainingBatch] | None = None
    loss: Callable[..., Tensor] | None = None
    measures: Callable[[EvalPrediction], dict[str, float]] | None = None
    preprocess_logits: Callable[[Tensor, Tensor], Tensor] | None = None
    bytes_per_token: float | None = None
    tokenizer: Any = None
    tokenizer_sha256: str | None = None

    def batches(self, count: int, size: int = 8) -> list[TrainingBatch]:
        """Batches of the first `count` held-out examples without labels, for a diagnosis."""
        rows = [self.valid[i] for i in range(min(count, len(self.valid)))]  # type: ignore[arg-type]
        parts = [self.collate(rows[i : i + size]) for i in range(0, len(rows), size)]
        return [{name: values for name, values in part.items() if name != "labels"} for part in parts]

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """What must be the same when the run is resumed, and in all of its processes."""
        return {"data_sha256": self.data_sha256, "tokenizer_sha256": self.tokenizer_sha256}

    def readings(self, logs: dict[str, float]) -> dict[str, float]:
        """Perplexity and bits per byte for each language-modelling loss in the logs."""
        if self.unit != "tokens":
            return {}
        read: dict[str, float] = {}
        for name, prefix in (("loss", ""), ("eval_loss", "eval_")):
            if name in logs:
                read[f"{prefix}perplexity"] = math.exp(min(logs[name], 700.0))
                if self.bytes_per_token and prefix:
                    read[f"{prefix}bits_per_byte"] = logs[name] / math.log(2) / self.bytes_per_token
        return read


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe; loads its data."""
    check_model(recipe)
    return _language(recipe) if recipe.task == "language" else _images(recipe)


def _language(recipe: Recipe) -> Task:
    corpus = load_text(recipe.data)
    tokenizer = recipe.tokenizer
    if recipe.model is not None and tokenizer == "bpe":  # a checkpoint has its own tokenizer
        tokenizer = model_path(recipe.model)
    data: TokenData = token_data(corpus, tokenizer, recipe.vocab_size, recipe.length)
    if len(data.train) == 0 or len(data.valid) == 0:
        raise ValueError(f"{recipe.data} is too short for one sequence of {recipe.length} tokens; lower --length.")
    return Task(
        train=first(data.train, recipe.examples),
        valid=first(data.valid, recipe.eval_examples),
        collate=default_data_collator,
        build=lambda: build_model(recipe, vocabulary=data.vocab_size),
        guessing=math.log(data.vocab_size),
        units=recipe.length,
        unit="tokens",
        data_sha256=corpus.fingerprint,
        bytes_per_token=data.bytes_per_token,
        tokenizer=data.tokenizer,
        tokenizer_sha256=data.tokenizer_sha256,
    )


def _images(recipe: Recipe) -> Task:
    data: ImageData = load_images(recipe.data)
    classes = len(data.class_names)
    return Task(
        train=first(data.train, recipe.examples),
        valid=first(data.valid, recipe.eval_examples),
        collate=ImageCollator(recipe.image_size, mean=data.mean, std=data.std),
        build=lambda: build_model(recipe, classes=classes),
        guessing=math.log(classes),
        units=1,
        unit="images",
        data_sha256=image_fingerprint(data),
        augment=_augment(recipe, data, classes),
        loss=ImageLoss(recipe.label_smoothing),
        measures=accuracy,
        preprocess_logits=lambda logits, labels: logits.argmax(dim=-1),
    )


def image_fingerprint(data: ImageData) -> str:
    """sha256 of the images, labels and class names; of images that lie on disk, some of each split."""
    digest = hashlib.sha256(json.dumps(data.class_names).encode())
    for split in (data.train, data.valid):
        size = len(split)  # type: ignore[arg-type]
        digest.update(f"{size}\n".encode())
        if isinstance(split, ArrayImages):
            digest.update(split.images.numpy().tobytes() + split.labels.numpy().tobytes())
            continue
        for index in range(0, size, max(1, size // SAMPLED)):
            item = split[index]
            digest.update(f"{item['labels']} {tuple(item['pixel_values'].shape)}\n".encode())
            digest.update(item["pixel_values"].numpy().tobytes())
    return digest.hexdigest()


def _augment(recipe: Recipe, data: ImageData, classes: int) -> Callable[[TrainingBatch], TrainingBatch] | None:
    augmentation = mixup = None
    if recipe.crop or recipe.randaugment or recipe.erasing:
        augmentation = Augmentation(
            crop="pad" if recipe.crop else "none",
            flip=recipe.crop,
            randaugment=_two_numbers(recipe.randaugment),
            erasing=recipe.erasing,
            mean=data.mean,
            std=data.std,
        )
    if recipe.mixup or recipe.cutmix:
        mixup = Mixup(classes, mixup_alpha=recipe.mixup, cutmix_alpha=recipe.cutmix)
    if augmentation is None and mixup is None:
        return None
    return lambda batch: augment_batch(batch, augmentation, mixup)


def _two_numbers(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise ValueError(f"randaugment must be two whole numbers such as 2,27, got {text!r}.")
    return int(parts[0]), int(parts[1])


def accuracy(predicted: EvalPrediction) -> dict[str, float]:
    """Share of images whose predicted class is correct."""
    guesses, labels = torch.as_tensor(predicted.predictions), torch.as_tensor(predicted.label_ids)
    return {"accuracy": (guesses == labels).float().mean().item()}


def first(data: Dataset[Any], count: int | None) -> Dataset[Any]:
    """The first `count` rows; all if `count` is None."""
    size = len(data)  # type: ignore[arg-type]
    return data if count is None or count >= size else Subset(data, range(count))
