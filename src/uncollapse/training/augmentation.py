"""Augmentation of batches of images during training, on the device of the batch.

It runs in the training step, not in the data loader: accelerate's loader prefetches one batch, so random numbers drawn
in a collator are drawn before a checkpoint saves the state of torch's generator, and a resumed run would see other
images. All random numbers here come from torch's default generators during the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from uncollapse.extras import require

Crop = Literal["pad", "resized", "none"]
PADDING = 4  # pixels around a small image before a crop of its own size


class Augmentation(nn.Module):
    """Crop, flip, RandAugment and random erasing of normalised images (B, C, S, S), by kornia.

    kornia's RandAugment draws its operations once per batch, while its paper and timm draw them for each image, and all
    images share its magnitude. Magnitudes go up to 30 in kornia and to 10 in timm: if (9, 0.5) in Table 3 of the
    Hopfield paper is timm's magnitude 9 with standard deviation 0.5, it is `randaugment=(2, 27)` here, without the
    deviation.

    Args:
        mean: channel means by which the images were normalised.
        std: channel standard deviations by which the images were normalised.
        crop: "pad" crops to the size of the image after padding by 4 pixels, "resized" resizes a random part (8 % to
            100 % of the area) to the size of the image, "none" leaves the image unchanged.
        flip: whether to flip half of the images horizontally.
        randaugment: number of operations and magnitude (1 to 29), or None.
        erasing: probability that a rectangle (2 % to 33 %) of an image is set to the mean colour.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        crop: Crop = "pad",
        flip: bool = True,
        randaugment: tuple[int, int] | None = None,
        erasing: float = 0.0,
    ) -> None:
        super().__init__()
        if crop not in get_args(Crop):
            raise ValueError(f"crop must be one of {', '.join(get_args(Crop))}, got {crop!r}.")
        kornia = _kornia()
        self.crop = crop
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.flip = kornia.RandomHorizontalFlip(p=0.5) if flip else nn.Identity()
        self.randaugment = kornia.auto.RandAugment(*randaugment) if randaugment else nn.Identity()
        self.erasing = kornia.RandomErasing(p=erasing, value=0.0) if erasing else nn.Identity()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The augmented images."""
        if images.shape[1] != 3 and not isinstance(self.randaugment, nn.Identity):
            raise ValueError(f"RandAugment changes colours and needs images of 3 channels, got {images.shape[1]}.")
        pixels = (images * self.std + self.mean).clamp_(0.0, 1.0)  # RandAugment expects pixels in [0, 1]
        pixels = self.flip(self._cropped(pixels))
        pixels = self.randaugment(pixels).clamp_(0.0, 1.0)
        return self.erasing((pixels - self.mean) / self.std)  # type: ignore[no-any-return]

    def _cropped(self, pixels: Tensor) -> Tensor:
        size = (pixels.shape[-2], pixels.shape[-1])
        if self.crop == "pad":
            return _kornia().RandomCrop(size, padding=PADDING, p=1.0)(pixels)  # type: ignore[no-any-return]
        if self.crop == "resized":
            return _kornia().RandomResizedCrop(size, scale=(0.08, 1.0), p=1.0)(pixels)  # type: ignore[no-any-return]
        return pixels


class Mixup:
    """Mixup or CutMix: mixes each image and its label with another of the batch.

    The weight of mixup is drawn from Beta(alpha, alpha) once per batch (kornia draws it uniformly). CutMix is kornia's,
    with one rectangle per image; the label is weighted by the remaining area.

    Args:
        classes: number of classes.
        mixup_alpha: 0 turns mixup off.
        cutmix_alpha: 0 turns CutMix off.
        switch: probability of CutMix if both are on.

    >>> images, labels = Mixup(classes=3)(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))
    >>> images.shape, labels.shape, labels.sum(1).tolist()
    (torch.Size([4, 3, 8, 8]), torch.Size([4, 3]), [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, classes: int, mixup_alpha: float = 0.8, cutmix_alpha: float = 0.0, switch: float = 0.5) -> None:
        if mixup_alpha < 0 or cutmix_alpha < 0 or not 0.0 <= switch <= 1.0:
            raise ValueError(
                "mixup_alpha and cutmix_alpha must not be negative and switch must lie between 0 and 1, "
                f"got {mixup_alpha}, {cutmix_alpha} and {switch}."
            )
        self.classes, self.mixup_alpha = classes, mixup_alpha
        self.switch = 0.0 if cutmix_alpha == 0 else 1.0 if mixup_alpha == 0 else switch
        self.cutmix = (
            _kornia().RandomCutMixV2(p=1.0, beta=cutmix_alpha, data_keys=["input", "class"], use_correct_lambda=True)
            if cutmix_alpha > 0
            else None
        )

    @torch.no_grad()
    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed images (B, C, H, W) and soft labels (B, classes), the latter in float32."""
        one_hot = functional.one_hot(labels, self.classes).float()
        if self.cutmix is not None and float(torch.rand(())) < self.switch:
            images, mixed = self.cutmix(images, labels)
            _, second, weight = mixed[0].unbind(1)
            other = functional.one_hot(second.long(), self.classes).float()
            return images, weight[:, None].float() * one_hot + (1.0 - weight[:, None].float()) * other
        if self.mixup_alpha == 0:
            return images, one_hot
        weight = float(torch.distributions.Beta(self.mixup_alpha, self.mixup_alpha).sample())
        other = torch.randperm(len(images)).to(images.device)
        return torch.lerp(images[other], images, weight), torch.lerp(one_hot[other], one_hot, weight)


def augment_batch(
    batch: dict[str, Any], augmentation: Augmentation | None = None, mixup: Mixup | None = None
) -> dict[str, Any]:
    """Augment and then mix a batch of `pixel_values` and `labels`."""
    images, labels = batch["pixel_values"], batch["labels"]
    if augmentation is not None:
        images = augmentation(images)
    if mixup is not None:
        images, labels = mixup(images, labels)
    return batch | {"pixel_values": images, "labels": labels}


def _kornia() -> Any:
    require("kornia")
    import kornia.augmentation

    return kornia.augmentation
