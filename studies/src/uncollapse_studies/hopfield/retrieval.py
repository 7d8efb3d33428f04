"""The continuous network of the first paper retrieves images of digits (scikit-learn's) from noisy cues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from uncollapse.theory import HopfieldNetwork

from ..figure import Result, Size

SIDE = 8  # pixels
MOMENTS = (0.0, 0.5, 1.0, 2.0, 4.0, 12.0)  # times at which the state is shown


@dataclass(frozen=True)
class RetrievalSetting:
    """The network and its cues."""

    beta: float = 16.0
    tau_visible: float = 1.0
    tau_hidden: float = 1.0
    noise: float = 1.0  # length of the noise over that of the pattern
    cues: tuple[int, ...] = (2, 5, 9)
    trials: int = 10  # noisy cues of each digit for the share retrieved
    time: float = 12.0
    points: int = 121
    seed: int = 0


SMALLEST = RetrievalSetting(cues=(2,), trials=1, points=25)


def digit_patterns() -> np.ndarray:
    """The first image of each digit, without its mean and scaled to length one: (10, 64)."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    patterns = np.stack([images[labels == digit][0] for digit in range(10)])
    patterns = patterns - patterns.mean(axis=1, keepdims=True)
    scaled: np.ndarray = patterns / np.linalg.norm(patterns, axis=1, keepdims=True)
    return scaled


def noisy(pattern: np.ndarray, noise: float, random: np.random.Generator) -> np.ndarray:
    """A pattern plus Gaussian noise whose expected length is `noise`."""
    cue: np.ndarray = pattern + noise * random.standard_normal(len(pattern)) / np.sqrt(len(pattern))
    return cue


def retrieval_tables(network: HopfieldNetwork, setting: RetrievalSetting) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Overlap and energy over time, and the pixels of the state at a few moments."""
    random = np.random.default_rng(setting.seed)
    courses, pixels = [], []
    for digit in setting.cues:
        path = network.solve(noisy(network.patterns[digit], setting.noise, random), setting.time, setting.points)
        assert path.energy is not None
        rival = np.delete(path.overlap, digit, axis=1).max(axis=1)
        for quantity, values in (
            ("overlap with the pattern", path.overlap[:, digit]),
            ("largest other overlap", rival),
            ("energy", path.energy),
        ):
            courses.append(pd.DataFrame({"cue": digit, "time": path.time, "quantity": quantity, "value": values}))
        for moment in MOMENTS:
            state = path.visible[int(np.abs(path.time - moment).argmin())]
            rows, columns = np.divmod(np.arange(SIDE**2), SIDE)
            pixels.append(
                pd.DataFrame({"cue": digit, "time": moment, "row": rows, "column": columns, "ink": _ink(state)})
            )
    return pd.concat(courses, ignore_index=True), pd.concat(pixels, ignore_index=True)


def _ink(state: np.ndarray) -> np.ndarray:
    """Pixels from 0 to 1, each image by its own range: the state of a network has no fixed contrast."""
    scaled: np.ndarray = (state - state.min()) / (state.max() - state.min())
    return scaled


def share_retrieved(network: HopfieldNetwork, setting: RetrievalSetting, tick: Callable[[], object]) -> float:
    """How many of the noisy cues of all digits end nearest to their own pattern."""
    random = np.random.default_rng(setting.seed + 1)
    hits = []
    for digit, pattern in enumerate(network.patterns):
        for _ in range(setting.trials):
            hits.append(network.retrieve(noisy(pattern, setting.noise, random), setting.time) == digit)
        tick()
    return float(np.mean(hits))


def figure(size: Size, tick: Callable[[], object]) -> Result:
    """Images of the state, overlap and energy over time."""
    from ..charts.retrieval_chart import retrieval_chart

    setting = RetrievalSetting() if size == "full" else SMALLEST
    network = HopfieldNetwork(digit_patterns(), setting.beta, setting.tau_visible, setting.tau_hidden)
    courses, pixels = retrieval_tables(network, setting)
    share = share_retrieved(network, setting, tick)
    ends = courses[courses["time"] == courses["time"].max()].pivot(index="cue", columns="quantity", values="value")
    rises = courses[courses["quantity"] == "energy"].groupby("cue")["value"].apply(lambda e: e.diff().max()).max()
    sentences = [
        f"Of {10 * setting.trials} cues with noise as long as {setting.noise:g} times the pattern, {share:.0%} end "
        "nearest to their own digit.",
        *(f"Digit {cue}: overlap {row['overlap with the pattern']:.3f} at the end." for cue, row in ends.iterrows()),
        f"The energy never rises (largest step {rises:.1e}).",
    ]
    table = pd.concat([courses, pixels.assign(quantity="pixel").rename(columns={"ink": "value"})], ignore_index=True)
    return Result(
        table=table,
        chart=retrieval_chart(courses, pixels),
        sentences=sentences,
        reading_aid="A row is one noisy cue: its state at six moments, then how much it looks like its pattern and "
        "like the nearest other one, then the energy, which can only fall.",
        summary=ends.round(4).rename_axis(columns=None).reset_index(),
        settings={**setting.__dict__, "moments": list(MOMENTS), "patterns": "first image of each digit, scikit-learn"},
    )
