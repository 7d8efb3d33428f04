"""What seeds tell: the difference of two methods with its interval, and whether it points where a paper says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

CONFIDENCE = 0.95
FEWEST = 2  # seeds below which there is no spread, and so no interval
SMALLEST = {"accuracy": 2.0}  # points: a difference that counts, and with one seed each the least that is believed
SMALLEST_SHARE = 0.02  # the same for other numbers, as a share of the first one's


@dataclass(frozen=True)
class Difference:
    """The other's mean less the base's, and half of what it may be off.

    With two seeds or more on both sides that is the 95 % interval of Welch's t-test; with one, the smallest difference
    that counts.
    """

    gap: float
    half: float
    smallest: float
    seeds: int  # of the side that has fewer

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.gap - self.half

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.gap + self.half

    @property
    def sign(self) -> int:
        """-1, 0 or 1: the other is lower, not distinguishable, or higher."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def excludes(self, expected: int) -> bool:
        """Whether a difference as `expected` that is large enough to count is ruled out; one seed rules out nothing."""
        if self.seeds < FEWEST:
            return False
        return self.high < self.smallest if expected > 0 else self.low > -self.smallest

    def __str__(self) -> str:
        if self.seeds < FEWEST:
            return f"{self.gap:+.3g} (one seed)"
        return f"{self.gap:+.3g} ({self.low:+.3g} to {self.high:+.3g})"


def difference(
    number: str, base: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE
) -> Difference:
    """Compare the values of a number over the seeds of two methods.

    >>> print(difference("accuracy", [50.0, 51.0, 52.0], [60.0, 61.0, 62.0]))
    +10 (+7.73 to +12.3)
    >>> difference("accuracy", [50.0], [51.5]).sign, difference("perplexity", [50.0], [51.5]).sign
    (0, 1)
    """
    smallest = SMALLEST.get(number, SMALLEST_SHARE * abs(float(np.mean(base))))
    seeds = min(len(base), len(other))
    if seeds < FEWEST:
        return Difference(float(np.mean(other) - np.mean(base)), smallest, smallest, seeds)
    return Difference(*interval(base, other, confidence), smallest, seeds)


def level(values: Sequence[float], confidence: float = CONFIDENCE) -> Difference:
    """The mean of a number over seeds, as a difference from 0; with one seed without an interval.

    >>> print(level([1.0, 1.1, 1.2]))
    +1.1 (+0.852 to +1.35)
    """
    if len(values) < FEWEST:
        return Difference(float(np.mean(values)), 0.0, 0.0, len(values))
    return Difference(*interval([0.0, 0.0], values, confidence), 0.0, len(values))


def interval(base: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Difference of two means (other less base) and half its confidence interval (Welch).

    >>> interval([3.0, 3.0], [1.0, 1.0])
    (-2.0, 0.0)
    """
    a, b = np.asarray(base, dtype=float), np.asarray(other, dtype=float)
    gap = float(b.mean() - a.mean())
    parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    error = float(parts.sum())
    if error == 0.0:
        return gap, 0.0
    freedom = error**2 / (parts**2 / [len(a) - 1, len(b) - 1]).sum()
    return gap, float(student.ppf(0.5 + confidence / 2, freedom) * math.sqrt(error))
