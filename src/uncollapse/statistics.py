"""Is a difference real? Means over seeds, Welch's interval of their difference, and Holm's correction.

`uncollapse compare` and the studies judge by this rule alone. A difference is called higher or lower if its interval
excludes 0. One seed has no spread, hence no interval, and never decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from .extras import require

CONFIDENCE = 0.95
FEWEST = 2  # seeds from which there is a spread, and so an interval

DifferenceVerdict = Literal["higher", "lower", "undecided"]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, or a difference of two such means, with its confidence interval (Student's t)."""

    value: float
    error: float  # standard error; NaN with one seed
    freedom: float  # degrees of freedom
    seeds: int  # in a difference, of the side that has fewer
    confidence: float = CONFIDENCE

    @cached_property
    def detectable(self) -> float:
        """Half the width of the interval: the smallest difference that these seeds can show; infinite with one."""
        if self.seeds < FEWEST:
            return math.inf
        if self.error == 0.0:
            return 0.0
        return float(_student().ppf(0.5 + self.confidence / 2, self.freedom) * self.error)

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.value - self.detectable

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.value + self.detectable

    @property
    def p_value(self) -> float:
        """Two-sided, of the hypothesis that the value is 0; NaN with one seed."""
        if self.seeds < FEWEST:
            return math.nan
        if self.error == 0.0:
            return float(self.value == 0.0)
        return float(2.0 * _student().sf(abs(self.value) / self.error, self.freedom))

    @property
    def verdict(self) -> DifferenceVerdict:
        """Higher or lower than 0 if the interval excludes it, else undecided."""
        return "higher" if self.low > 0.0 else "lower" if self.high < 0.0 else "undecided"

    def excludes(self, change: float) -> bool:
        """Whether the interval rules out a change of this sign that is at least as large."""
        return self.high < change if change > 0.0 else self.low > change

    def __str__(self) -> str:
        if self.seeds < FEWEST:
            return f"{self.value:+.3g} (one seed)"
        return f"{self.value:+.3g} ({self.low:+.3g} to {self.high:+.3g})"


@dataclass(frozen=True)
class SeedSummary:
    """A number over seeds: its mean, its standard deviation (NaN with one seed), and how many seeds there are."""

    mean: float
    spread: float
    seeds: int

    def estimate(self, confidence: float = CONFIDENCE) -> Estimate:
        """The mean with its interval.

        >>> print(summarise([1.0, 1.1, 1.2]).estimate())
        +1.1 (+0.852 to +1.35)
        """
        return Estimate(self.mean, self.spread / math.sqrt(self.seeds), self.seeds - 1.0, self.seeds, confidence)


def summarise(values: Sequence[float]) -> SeedSummary:
    """Mean and standard deviation over seeds.

    >>> summarise([1.0, 3.0])
    SeedSummary(mean=2.0, spread=1.4142135623730951, seeds=2)
    """
    numbers = np.asarray(values, dtype=float)
    if not len(numbers):
        raise ValueError("a mean needs the value of at least one seed, got none.")
    if len(numbers) < FEWEST:
        return SeedSummary(float(numbers[0]), math.nan, 1)
    if np.ptp(numbers) == 0.0:  # the mean of equal numbers may round to another one
        return SeedSummary(float(numbers[0]), 0.0, len(numbers))
    return SeedSummary(float(numbers.mean()), float(numbers.std(ddof=1)), len(numbers))


def difference(base: SeedSummary, other: SeedSummary, confidence: float = CONFIDENCE) -> Estimate:
    """The other's mean less the base's, with Welch's interval: seeds independent, spreads not assumed equal.

    >>> found = difference(summarise([50.0, 51.0, 52.0]), summarise([60.0, 61.0, 62.0]))
    >>> print(found, found.verdict)
    +10 (+7.73 to +12.3) higher
    >>> found = difference(summarise([50.0]), summarise([60.0]))
    >>> print(found, found.verdict)
    +10 (one seed) undecided
    """
    gap, seeds = other.mean - base.mean, min(base.seeds, other.seeds)
    if seeds < FEWEST:
        return Estimate(gap, math.nan, math.nan, seeds, confidence)
    errors = [side.spread / math.sqrt(side.seeds) for side in (base, other)]
    error = math.hypot(*errors)
    if error == 0.0:
        return Estimate(gap, 0.0, math.inf, seeds, confidence)
    shares = [(own / error) ** 2 for own in errors]  # Welch-Satterthwaite, from shares so that nothing underflows
    freedom = 1.0 / (shares[0] ** 2 / (base.seeds - 1) + shares[1] ** 2 / (other.seeds - 1))
    return Estimate(gap, error, freedom, seeds, confidence)


def differences(
    base: SeedSummary, others: Mapping[Key, SeedSummary], confidence: float = CONFIDENCE
) -> dict[Key, Estimate]:
    """Several methods against one base, with Holm's correction: each interval is as wide as it asks.

    >>> base, near, far = map(summarise, ([1.0, 1.2, 1.4], [1.4, 1.6, 1.8], [9.0, 9.2, 9.4]))
    >>> for name, found in differences(base, {"near": near, "far": far}).items():
    ...     print(name, found, found.verdict)
    near +0.4 (-0.0534 to +0.853) undecided
    far +8 (+7.43 to +8.57) higher
    """
    found = {key: difference(base, other) for key, other in others.items()}
    levels = holm([estimate.p_value for estimate in found.values()], confidence)
    return {key: replace(estimate, confidence=own) for (key, estimate), own in zip(found.items(), levels, strict=True)}


def holm(p_values: Sequence[float], confidence: float = CONFIDENCE) -> list[float]:
    """The confidence of each of m intervals, such that one excludes 0 exactly where Holm's test rejects.

    The smallest p-value is held against (1 - confidence) / m, the next against (1 - confidence) / (m - 1), and so on
    until one is not rejected; those after it are held against the same as that one. Together they reject a true
    hypothesis with a probability of at most 1 - confidence. A NaN stands for a comparison that cannot be made and does
    not count.

    >>> [round(level, 4) for level in holm([0.03, 0.001, 0.04])]
    [0.975, 0.9833, 0.975]
    """
    tested = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    levels, left, rejecting = [confidence] * len(p_values), len(tested), True
    for p, index in tested:
        risk = (1.0 - confidence) / left
        levels[index] = 1.0 - risk
        rejecting = rejecting and p < risk
        left -= rejecting
    return levels


def _student() -> Any:
    require("scipy")  # not part of the core
    from scipy.stats import t

    return t
