"""Entropy and sinks of attention rows. Rows of weights or scores are (..., K)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .gap import largest_two

HIDDEN = -1e30  # score of a masked key: its exp is 0, and 0 times it is 0, where -inf would give NaN
_VANISHED = 1e-30  # sums of exponentials below this have lost digits


def entropy(weights: Tensor) -> Tensor:
    """Entropy of attention rows in nats: (..., K) -> (...).

    >>> import torch
    >>> entropy(torch.full((4,), 0.25)) / torch.log(torch.tensor(4.0))
    tensor(1.)
    """
    rows: Tensor = torch.special.entr(weights).sum(dim=-1)
    return rows


@dataclass
class RowStatistics:
    """Statistics of rows of scores (..., K); every field is (...), except `exponentials` (..., K)."""

    entropy: Tensor
    entropy_no_first: Tensor  # without the first visible key, renormalised
    first: Tensor  # weight on the first visible key
    largest_score: Tensor
    gap: Tensor  # of the largest score to the second largest; means nothing where a row sees one key
    exponentials: Tensor  # exp(score - largest_score); divided by `normaliser`, the weights
    normaliser: Tensor


def row_statistics(scores: Tensor, first: Tensor) -> RowStatistics:
    """Entropy and sink of softmax rows, from their scores; `scores` is overwritten.

    Args:
        scores: (..., K), HIDDEN where a key is masked; K is at least 2.
        first: index of the first visible key of each row, (...).

    >>> import torch
    >>> r = row_statistics(torch.zeros(1, 4), torch.tensor([0]))
    >>> r.entropy.exp(), r.entropy_no_first.exp(), r.first
    (tensor([4.]), tensor([3.]), tensor([0.2500]))
    """
    first = first.unsqueeze(-1)
    largest, second = largest_two(scores)
    relative = scores.sub_(largest.unsqueeze(-1))
    exponentials = relative.exp()
    first_exp, first_relative = exponentials.gather(-1, first), relative.gather(-1, first)
    exponentials.scatter_(-1, first, 0.0)  # sums without the first key first: taking it off again would cancel digits
    rest = exponentials.sum(dim=-1)
    rest_product = dot(exponentials, relative)
    rest_entropy = (rest.log() - rest_product / rest).where(rest != 0, 0.0)
    if (vanished := rest < _VANISHED).any():  # next to such a sink the others leave float32's range: take them alone
        rest_entropy[vanished] = _entropy_without(relative[vanished], first[vanished])
    exponentials.scatter_(-1, first, first_exp)
    first_exp, first_relative = first_exp.squeeze(-1), first_relative.squeeze(-1)
    total = rest + first_exp
    product = rest_product + first_exp * first_relative
    return RowStatistics(
        entropy=(total.log() - product / total).clamp(min=0.0),
        entropy_no_first=rest_entropy.clamp(min=0.0),
        first=first_exp / total,
        largest_score=largest,
        gap=largest - second,
        exponentials=exponentials,
        normaliser=total,
    )


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Products of rows, (..., K) and (..., K) -> (...)."""
    rows: Tensor = torch.linalg.vecdot(x, y)  # a quarter of the time of a product of matrices of one row and one column
    return rows


def _entropy_without(relative: Tensor, first: Tensor) -> Tensor:
    """Entropy of softmax rows (N, K) without the key `first` (N, 1); 0 where no other key is seen."""
    others = relative.scatter(-1, first, HIDDEN)
    largest = others.amax(dim=-1, keepdim=True)
    others -= largest
    exponentials = others.exp()
    total = exponentials.sum(dim=-1)
    rows = total.log() - dot(exponentials, others) / total
    return rows.where(largest.squeeze(-1) > HIDDEN / 2, 0.0)
