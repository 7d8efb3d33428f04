"""The gradient of the loss with respect to W_QK in the one-layer Transformer of the second paper (Eq. 3, 19 to 21).

F(X)_T = W_F { W_V X S~(w) + x_T }, w = X^T W_QK x_T / lambda, J = E ||y - F(X)_T||^2 / 2, with the piecewise-linear
softmax S~. Tokens are rows here: x (n, T, d), y (n, d); weights are (d, d).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uncollapse.metrics import propagates

from .form import Array
from .piecewise_softmax import offsets, piecewise_softmax
from .random_walk import generator, random_walks

PRINTED_ORDERS = (8, 5, 4)  # of Eq. 19, 20, 21 in T, as Appendix B.2 prints its upper bounds


@dataclass(frozen=True)
class OneLayer:
    """The weights of the one-layer Transformer."""

    qk: Tensor
    value: Tensor
    feed_forward: Tensor  # W_F = W_F2 W_F1 + I
    temperature: float

    def scores(self, x: Tensor) -> Tensor:
        """W = X^T W_QK x_T / lambda: (n, T)."""
        return (x @ self.qk @ x[:, -1].unsqueeze(-1)).squeeze(-1) / self.temperature

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """J, the mean over the n sequences; autograd of it is the oracle of `qk_gradient`."""
        mixed = (x.mT @ piecewise_softmax(self.scores(x)).unsqueeze(-1)).squeeze(-1)  # X S~(w): (n, d)
        output = (mixed @ self.value.mT + x[:, -1]) @ self.feed_forward.mT
        return (y - output).square().sum(dim=-1).mean() / 2


def qk_gradient(model: OneLayer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three terms of Eq. 3, which Eq. 19, 20 and 21 spell out; their sum is the gradient of J: (d, d) each.

    With C = X Gamma X^T = (1/T) sum_i [i propagates] (x_i - mean(x)) x_i^T and P = W_V^T W_F^T W_F W_V:

        (19) C P C^T W_QK x_T x_T^T / lambda^2
        (20) C P X gamma_0 x_T^T / lambda
        (21) C W_V^T W_F^T (W_F x_T - y) x_T^T / lambda

    averaged over the sequences. No T x T matrix is formed.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> model = OneLayer(qk=eye.clone().requires_grad_(), value=eye, feed_forward=eye, temperature=1.0)
    >>> x, y = torch.randn(5, 3, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    >>> [autograd] = torch.autograd.grad(model.loss(x, y), model.qk)
    >>> torch.allclose(sum(qk_gradient(model, x, y)), autograd)
    True
    """
    last, tokens = x[:, -1], x.shape[1]
    scores = model.scores(x)
    passed = propagates(scores)
    centred = (x - x.mean(dim=1, keepdim=True)) * passed.unsqueeze(-1)
    spread = centred.mT @ x / tokens  # C: (n, d, d)
    through = model.value.mT @ model.feed_forward.mT  # W_V^T W_F^T
    pull = through @ through.mT  # P
    clipped = (x.mT @ offsets(scores, passed).unsqueeze(-1)).squeeze(-1)  # X gamma_0: (n, d)

    def mean_outer(left: Tensor) -> Tensor:
        return torch.einsum("ni,nj->ij", left, last) / len(x)

    query = last @ model.qk.mT  # W_QK x_T
    first = torch.einsum("nij,jk,nlk,nl->ni", spread, pull, spread, query) / model.temperature**2
    second = torch.einsum("nij,jk,nk->ni", spread, pull, clipped) / model.temperature
    error = last @ model.feed_forward.mT - y
    third = torch.einsum("nij,jk,nk->ni", spread, through, error) / model.temperature
    return mean_outer(first), mean_outer(second), mean_outer(third)


@dataclass(frozen=True)
class Orders:
    """How the three terms grow with T: slopes of log norm against log T, with their standard errors."""

    tokens: tuple[int, ...]
    norms: Array  # (lengths, 3): Frobenius norms of the expected terms
    slopes: Array  # (3,)
    errors: Array  # (3,)
    clipped_above: Array  # (lengths,): share of tokens with g_i > 1


def gradient_orders(
    qk: Tensor,
    *,
    value: Tensor | None = None,
    feed_forward: Tensor | None = None,
    temperature: float = 1.0,
    tokens: Sequence[int] = (128, 256, 512),
    walks: int = 1000,
    seed: int = 0,
) -> Orders:
    """Orders in T of Eq. 19, 20 and 21 under Assumption 1 (Sigma = I), by a fit over sequence lengths.

    The target y is the walk's next token. `value` is the identity and `feed_forward` twice the identity unless given
    (with W_F = I the expectation of Eq. 21 is zero). The printed orders, `PRINTED_ORDERS`, are upper bounds.

    >>> orders = gradient_orders(0.01 * torch.eye(2, dtype=torch.float64), tokens=(8, 16), walks=50)
    >>> orders.slopes.shape
    (3,)
    """
    if len(tokens) < 2:
        raise ValueError(f"a fit over T needs at least two lengths, got {list(tokens)}.")
    width, random = len(qk), generator(seed)
    eye = torch.eye(width, dtype=torch.float64)
    model = OneLayer(
        qk,
        value=eye if value is None else value,
        feed_forward=2.0 * eye if feed_forward is None else feed_forward,
        temperature=temperature,
    )
    norms, clipped = [], []
    for length in tokens:
        walk = random_walks(walks, length + 1, width, random)
        x, y = walk[:, :-1], walk[:, -1]
        norms.append([term.norm().item() for term in qk_gradient(model, x, y)])
        scores = model.scores(x)
        clipped.append((offsets(scores, propagates(scores)) == 1.0).double().mean().item())
    slopes, errors = _fit(np.log(np.asarray(tokens, dtype=np.float64)), np.log(np.asarray(norms)))
    return Orders(tuple(tokens), np.asarray(norms), slopes, errors, np.asarray(clipped))


def _fit(x: Array, y: Array) -> tuple[Array, Array]:
    """Slopes of the columns of y (n, k) over x (n,) by least squares, and their standard errors (NaN for n = 2)."""
    centred = x - x.mean()
    slopes = centred @ y / (centred @ centred)
    rest = y - y.mean(axis=0) - np.outer(centred, slopes)
    freedom = len(x) - 2
    variance = (rest**2).sum(axis=0) / freedom if freedom else np.full(y.shape[1], np.nan)
    return slopes, np.sqrt(variance / (centred @ centred))
