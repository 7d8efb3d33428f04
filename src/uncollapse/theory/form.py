"""Which form of a statement is meant, and the checks that every closed form shares."""

from __future__ import annotations

from numbers import Integral
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Form = Literal["corrected", "as_printed"]
Array = NDArray[np.float64]


def check_form(form: str) -> None:
    """Raise unless `form` is "corrected" or "as_printed"."""
    if form not in get_args(Form):
        raise ValueError(f"form must be one of {', '.join(get_args(Form))}, got {form!r}.")


def check_tokens(tokens: int) -> int:
    """The number of tokens T, at least 2.

    >>> check_tokens(1)
    Traceback (most recent call last):
    ...
    ValueError: T must be a whole number of at least 2 tokens, got 1.
    """
    if not isinstance(tokens, Integral) or tokens < 2:
        raise ValueError(f"T must be a whole number of at least 2 tokens, got {tokens}.")
    return int(tokens)


def relative_positions(theta: ArrayLike) -> Array:
    """Theta = i/T as an array; it must lie in [0, 1]."""
    positions = np.asarray(theta, dtype=np.float64)
    if not ((positions >= 0.0) & (positions <= 1.0)).all():  # also refuses NaN
        raise ValueError(f"theta is a relative position and must lie in [0, 1], got {_outside(positions)}.")
    return positions


def positive(name: str, value: ArrayLike) -> Array:
    """A positive finite number, or an array of them."""
    values = np.asarray(value, dtype=np.float64)
    if not ((values > 0.0) & np.isfinite(values)).all():
        bad = values[~((values > 0.0) & np.isfinite(values))].flat[0]
        raise ValueError(f"{name} must be positive and finite, got {bad:g}.")
    return values


def _outside(positions: Array) -> str:
    return f"{positions[~((positions >= 0.0) & (positions <= 1.0))].flat[0]:g}"
