"""The loss of image classification: cross-entropy with hard or soft labels, divided by the number of images.

The Trainer of transformers divides a loss by the number of label entries other than -100 in all batches of an update.
For labels (B,) that is the number of images, also with accumulation and several processes. For soft labels (B, C) it is
B C, which makes the loss C times too small. Labels must therefore be mixed after they are counted: in `training_step`,
with `augment_batch` of augmentation.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def soft_cross_entropy(
    outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy summed over the images of the batch and divided by the number of images of the update.

    Args:
        outputs: output of the model with `logits` (B, C), or the logits.
        labels: classes (B,) or probabilities (B, C).
        num_items_in_batch: images of the whole update; by default those of this batch.
        label_smoothing: weight of the uniform distribution over the classes.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> hard, soft = torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> torch.equal(soft_cross_entropy(logits, hard), soft_cross_entropy(logits, soft))
    True
    """
    logits = outputs if isinstance(outputs, Tensor) else outputs["logits"]
    if labels.dim() == 2 and labels.shape != logits.shape:
        raise ValueError(
            f"soft labels must have the shape of the logits {tuple(logits.shape)}, got {tuple(labels.shape)}."
        )
    labels = labels.to(logits.dtype) if labels.dim() == 2 else labels
    total = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


@dataclass(frozen=True)
class ImageLoss:
    """`soft_cross_entropy` for the Trainer's `compute_loss_func`.

    Labels are smoothed only while gradients are enabled, so an evaluation reports the plain cross-entropy.

    >>> loss = ImageLoss(label_smoothing=0.1)
    >>> logits = torch.tensor([[4.0, 0.0]])
    >>> training = loss(logits, torch.tensor([0]))
    >>> with torch.no_grad():
    ...     float(training) > float(loss(logits, torch.tensor([0])))
    True
    """

    label_smoothing: float = 0.0

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        smoothing = self.label_smoothing if torch.is_grad_enabled() else 0.0
        return soft_cross_entropy(outputs, labels, num_items_in_batch, smoothing)
