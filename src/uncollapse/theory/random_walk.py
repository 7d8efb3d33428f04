"""Simulation of the second paper's model: tokens are a Gaussian random walk (Assumption 1), W_QK has a given spectrum.

Shapes: n walks, T tokens, d width. Everything is float64 and comes from an explicit torch.Generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from uncollapse.extras import require
from uncollapse.metrics import entropy, propagates

from .form import Array, check_tokens, positive
from .inequalities import check_covariance
from .propagation import asymmetric_variance, propagation_probability

CHUNK_BYTES = 2**20  # of the largest tensor that is held at a time; small enough for a processor's cache
CONFIDENCE = 0.95


def generator(seed: int) -> torch.Generator:
    """A source of random numbers of its own."""
    return torch.Generator().manual_seed(seed)


def random_walks(
    walks: int, tokens: int, width: int, random: torch.Generator, covariance: ArrayLike | None = None
) -> Tensor:
    """Walks x_1 ~ N(0, Sigma), x_{t+1} ~ N(x_t, Sigma) (Assumption 1): (n, T, d). Sigma is the identity unless given.

    >>> random_walks(2, 5, 3, generator(0)).shape
    torch.Size([2, 5, 3])
    """
    check_tokens(tokens)
    factor = None if covariance is None else covariance_factor(covariance, width)
    return _walks(walks, tokens, width, random, factor)


def covariance_factor(covariance: ArrayLike, width: int) -> Tensor:
    """The Cholesky factor L of a covariance L L^T."""
    factor: Tensor = torch.linalg.cholesky(torch.as_tensor(check_covariance(covariance, width)))
    return factor


def _walks(walks: int, tokens: int, width: int, random: torch.Generator, factor: Tensor | None) -> Tensor:
    steps = torch.randn(walks, tokens, width, dtype=torch.float64, generator=random)
    walked: Tensor = (steps if factor is None else steps @ factor.mT).cumsum(dim=1)
    return walked


def qk_matrix(width: int, mean: float, scale: float, random: torch.Generator) -> Tensor:
    """W_QK = B diag(w) B^T with w ~ N(mean, scale^2) and a random orthogonal B (Section 4): symmetric, (d, d).

    >>> torch.linalg.eigvalsh(qk_matrix(4, mean=2.0, scale=0.0, random=generator(0)))
    tensor([2.0000, 2.0000, 2.0000, 2.0000], dtype=torch.float64)
    """
    eigenvalues = mean + scale * torch.randn(width, dtype=torch.float64, generator=random)
    basis, _ = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64, generator=random))
    weights: Tensor = (basis * eigenvalues) @ basis.mT
    return weights


def anisotropic_covariance(width: int, random: torch.Generator, reach: float = 2.5) -> Array:
    """R^T R / d with entries of R uniform in [-reach, reach]: the anisotropic covariance of Figure 5."""
    r = (2.0 * torch.rand(width, width, dtype=torch.float64, generator=random) - 1.0) * reach
    covariance: Array = (r.mT @ r / width).numpy()
    return covariance


@dataclass(frozen=True)
class QKStatistics:
    """The traces of W = W_QK Sigma that decide rho."""

    trace: float  # tr W
    square: float  # tr W^2
    quadratic: float  # tr(M Sigma M^T Sigma), equal to tr W^2 for a symmetric M
    temperature: float  # lambda

    @property
    def xi(self) -> float:
        """Xi = tr W / sqrt(tr W^2), for a symmetric W_QK."""
        return self.trace / math.sqrt(self.square)

    @property
    def eta(self) -> float:
        """Eta = sqrt(tr W^2) / lambda, for a symmetric W_QK."""
        return math.sqrt(self.square) / self.temperature

    def propagation(self, tokens: int) -> Array:
        """rho_1 ... rho_T from the exact mean and variance, for any W_QK."""
        theta = np.arange(1, check_tokens(tokens) + 1) / tokens
        mean = (theta - 0.5 - 0.5 / tokens) * self.trace / self.temperature + 1.0 / tokens
        return propagation_probability(
            mean, asymmetric_variance(theta, self.quadratic, self.square, self.temperature, tokens)
        )


def qk_statistics(
    weights: ArrayLike, covariance: ArrayLike | None = None, temperature: float | None = None
) -> QKStatistics:
    """Traces of W = W_QK Sigma; the temperature is sqrt(d) unless given.

    >>> s = qk_statistics(np.eye(4))
    >>> s.xi, s.eta
    (2.0, 1.0)
    """
    m = np.asarray(weights, dtype=np.float64)
    sigma = None if covariance is None else torch.as_tensor(check_covariance(covariance, len(m)))
    return _statistics(torch.as_tensor(m), sigma, _temperature(temperature, len(m)))


def _statistics(m: Tensor, sigma: Tensor | None, temperature: float) -> QKStatistics:
    w, mirrored = (m, m.mT) if sigma is None else (m @ sigma, m.mT @ sigma)
    return QKStatistics(
        trace=w.trace().item(),
        square=(w * w.mT).sum().item(),
        quadratic=(w * mirrored.mT).sum().item(),
        temperature=temperature,
    )


@dataclass(frozen=True)
class Band:
    """A mean over independent draws and its confidence interval at the level `CONFIDENCE`."""

    mean: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, draws: Array, lower: float, upper: float) -> Band:
        """Student's interval from draws (draws, ...), cut to [lower, upper]; one draw has no interval (NaN)."""
        mean = draws.mean(axis=0)
        if len(draws) < 2:
            missing = np.full_like(mean, np.nan)
            return cls(mean, missing, missing)
        from scipy.stats import t as student

        half = student.ppf(0.5 + CONFIDENCE / 2, len(draws) - 1) * draws.std(axis=0, ddof=1) / math.sqrt(len(draws))
        return cls(mean, np.clip(mean - half, lower, upper), np.clip(mean + half, lower, upper))


@dataclass(frozen=True)
class Simulation:
    """rho by position and the attention entropy of one pair (mean, scale) of eigenvalues; bands are over W_QK."""

    mean: float
    scale: float
    rho: Band  # (T,): how often a token's signal propagates to the last query
    entropy: Band  # (): mean entropy over all queries, in nats
    last_entropy: Band  # (): of the last query alone
    statistics: tuple[QKStatistics, ...]  # of each draw of W_QK


def simulate(
    spectra: Sequence[tuple[float, float]],
    *,
    width: int = 128,
    tokens: int = 40,
    walks: int = 300,
    draws: int = 10,
    covariance: ArrayLike | None = None,
    temperature: float | None = None,
    seed: int = 0,
    tick: Callable[[], object] = lambda: None,
) -> list[Simulation]:
    """Simulated signal propagation and attention entropy (Figure 5), for several (mean, scale) of the eigenvalues.

    Each draw makes one W_QK for every pair and `walks` walks that all pairs share; they go through in chunks of at most
    `CHUNK_BYTES`. Attention is bidirectional, as in Eq. 1. `tick` is called after each draw.

    >>> [result] = simulate([(0.0, 0.001)], width=8, tokens=6, walks=20, draws=2)
    >>> result.rho.mean  # W is almost 0: every token propagates
    array([1., 1., 1., 1., 1., 1.])
    """
    check_tokens(tokens)
    if walks < 1 or draws < 1:
        raise ValueError(f"walks and draws must be at least 1, got {walks} and {draws}.")
    heat = _temperature(temperature, width)
    sigma = None if covariance is None else torch.as_tensor(check_covariance(covariance, width))
    factor = None if sigma is None else torch.linalg.cholesky(sigma)
    if draws > 1:
        require("scipy")  # for the bands; better known now than after the simulation
    random = generator(seed)
    rho = np.zeros((draws, len(spectra), tokens))
    spread = np.zeros((draws, len(spectra), 2))
    statistics: list[list[QKStatistics]] = [[] for _ in spectra]
    for draw in range(draws):
        matrices = [qk_matrix(width, mean, scale, random) for mean, scale in spectra]
        for own, matrix in zip(statistics, matrices, strict=True):
            own.append(_statistics(matrix, sigma, heat))
        for part in _chunks(walks, tokens, width):
            x = _walks(part, tokens, width, random, factor)
            for index, matrix in enumerate(matrices):
                scores = x @ (matrix / heat) @ x.mT  # (n, T queries, T keys), M being symmetric
                rho[draw, index] += propagates(scores[:, -1]).sum(dim=0).numpy() / walks
                rows = entropy(scores.softmax(dim=-1))
                spread[draw, index] += np.array([rows.mean(dim=1).sum(), rows[:, -1].sum()]) / walks
        tick()
    top = math.log(tokens)
    return [
        Simulation(
            mean=mean,
            scale=scale,
            rho=Band.of(rho[:, index], 0.0, 1.0),
            entropy=Band.of(spread[:, index, 0], 0.0, top),
            last_entropy=Band.of(spread[:, index, 1], 0.0, top),
            statistics=tuple(statistics[index]),
        )
        for index, (mean, scale) in enumerate(spectra)
    ]


def _chunks(walks: int, tokens: int, width: int) -> Iterator[int]:
    """Sizes of chunks that sum to `walks`."""
    size = max(1, CHUNK_BYTES // (8 * tokens * max(tokens, width)))
    for start in range(0, walks, size):
        yield min(size, walks - start)


def _temperature(temperature: float | None, width: int) -> float:
    return math.sqrt(width) if temperature is None else float(positive("temperature", temperature))
