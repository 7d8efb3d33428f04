"""Spikes of the loss and of the gradient norm: far above the updates before, as OLMo-core scores them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..alarm import Alarm
from ..recent import Recent

WINDOW = 128  # updates before
FEWEST = 32
SIGMAS = 6.0
LEAST = 1e-3  # of the mean: the norm of gradients that are clipped differs by rounding only
NAMES = {"loss": "loss", "gradient_norm": "gradient norm"}


def spike(recent: Recent) -> list[Alarm]:
    """Updates since the last measurement that are six standard deviations above those before them, or not finite."""
    steps = recent.updates["step"].to_numpy()
    found = []
    for column, name in NAMES.items():
        values = recent.updates[column].to_numpy(dtype=float)
        scores = [(score, place, mean) for place, score, mean in spike_scores(values, steps > recent.since)]
        score, place, mean = max(scores, default=(0.0, 0, 0.0))
        if score >= SIGMAS:
            above = (
                f"is {score:.1f} standard deviations above the mean of the {WINDOW} updates before, {mean:.4g}"
                if np.isfinite(score)
                else f"is not finite; the updates before had {mean:.4g}"
            )
            sentence = f"{name} {values[place]:.4g} at update {steps[place]:,} {above}."
            found.append(Alarm(f"{name} spike", sentence, passes=True))
    return found


def spike_scores(values: np.ndarray, new: np.ndarray) -> Iterator[tuple[int, float, float]]:
    """Each new value's place, its distance from the mean of those before in standard deviations, and that mean."""
    for place in np.flatnonzero(new):
        before = values[max(0, place - WINDOW) : place]
        before = before[np.isfinite(before)]
        if len(before) < FEWEST:
            continue
        mean = float(before.mean())
        if not np.isfinite(values[place]):
            yield int(place), np.inf, mean
            return  # what follows is not finite either
        spread = max(float(before.std()), LEAST * abs(mean))
        if spread > 0:
            yield int(place), float((values[place] - mean) / spread), mean
