"""The small ViT without residual connections or without norms, and the images that it is trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from uncollapse.data.images import ImageCollator, load_images
from uncollapse.training.model import build_model
from uncollapse.training.recipe import Recipe

DATA, CLASSES = "cifar-10", 10


@dataclass(frozen=True)
class NetSize:
    """What all networks of the study share: width, images, and how often they are measured on held-out ones."""

    width: int = 96
    mlp_width: int = 192
    heads: int = 4
    patch: int = 8  # pixels: 16 tokens and that of the class
    batch: int = 32
    images: int = 10_000
    held_out: int = 2_000
    every: int = 100


@dataclass(frozen=True)
class Images:
    """Images in memory, normalised, (N, C, 32, 32), and their labels (N,)."""

    pixels: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Guess:
    """What can be had without looking at an image: the loss of the class frequencies, the accuracy of the largest."""

    loss: float
    accuracy: float


def vit(size: NetSize, layers: int, seed: int, *, residual: bool = True, norms: bool = True) -> Any:
    """A ViT with random weights as transformers draws them, with or without its residual connections and norms."""
    torch.manual_seed(seed)
    recipe = Recipe(
        task="images",
        family="vit",
        data=DATA,
        patch_size=size.patch,
        layers=layers,
        heads=size.heads,
        width=size.width,
        mlp_width=size.mlp_width,
        residual=residual,
        rule="self_attention",
        steps=1,
    )
    model = build_model(recipe, classes=CLASSES)
    if not norms:
        remove_norms(model)
    return model


def remove_norms(model: nn.Module) -> None:
    """Put the identity in the place of every LayerNorm.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    >>> remove_norms(model)
    >>> model[1]
    Identity()
    """
    for path in [path for path, module in model.named_modules() if isinstance(module, nn.LayerNorm)]:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, nn.Identity())


@torch.no_grad()
def start_as_identity(model: Any, *, values: bool) -> None:
    """Let every MLP of a ViT start as the identity, and with `values` also W_O W_V.

    With an orthogonal A, W_1 = (A, -A) and W_2 = its transpose this is so since gelu(a) - gelu(-a) = a; it takes an MLP
    that is twice as wide as the tokens ("looks-linear", Balduzzi et al. 2017, arXiv 1702.08591).
    """
    for layer in model.vit.layers:
        first, second = layer.mlp.fc1.weight, layer.mlp.fc2.weight  # (2 M, M), (M, 2 M)
        if first.shape[0] != 2 * first.shape[1]:
            raise ValueError(f"expected an MLP of twice the width {first.shape[1]}, got {first.shape[0]}.")
        half = nn.init.orthogonal_(torch.empty_like(second[:, : len(second)]))
        first.copy_(torch.cat([half, -half]))
        second.copy_(first.T)
        if values:
            nn.init.orthogonal_(layer.attention.v_proj.weight)
            layer.attention.o_proj.weight.copy_(layer.attention.v_proj.weight.T)


@cache
def images_of(split: str, count: int) -> Images:
    """The first images of a split, "train" or "valid", whose order is random in the files."""
    data = load_images(DATA)
    images: Any = getattr(data, split)
    assert data.size is not None
    collate = ImageCollator(data.size, data.mean, data.std)
    batch = collate([images[index] for index in range(min(count, len(images)))])
    return Images(batch["pixel_values"], batch["labels"])


def batches(size: NetSize, updates: int, seed: int) -> Tensor:
    """Which images each update has, (updates, batch): all of them in a new order, again and again."""
    generator, count = torch.Generator().manual_seed(seed), updates * size.batch
    rounds = math.ceil(count / size.images)
    order = torch.cat([torch.randperm(size.images, generator=generator) for _ in range(rounds)])
    return order[:count].view(updates, size.batch)


def guess_of(trained: Tensor, held_out: Tensor) -> Guess:
    """What the class frequencies of the training labels give on held-out ones.

    Each class counts once more than it was seen, so that one that was not seen has a finite loss.

    >>> guess_of(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1]))
    Guess(loss=0.752..., accuracy=0.5)
    """
    counts = 1.0 + torch.bincount(trained, minlength=int(held_out.max()) + 1).double()
    logs = (counts / counts.sum()).log()
    return Guess(float(-logs[held_out].mean()), float((held_out == counts.argmax()).double().mean()))
