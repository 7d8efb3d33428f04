"""Axes of curves over training, where runs are almost equal or were evaluated once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from uncollapse.report.training_curves import MEAN, TrainingCurve, training_chart


def axes(steps: list[int], values: list[float], logarithmic: bool = False) -> tuple[Any, Any]:
    """The x and y channels of the line of two groups."""
    table = pd.DataFrame({"report": 1, "run": MEAN, "step": steps, "value": values, "low": np.nan, "high": np.nan})
    chart = training_chart(TrainingCurve("Loss", table, logarithmic), "loss", ["one"])
    encoding = chart.spec["layer"][0]["encoding"]
    return encoding["x"], encoding["y"]


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("level", [5.21, 1.0, 9.99e-4])
def test_labels_of_almost_equal_numbers_are_not_the_same(level: float, logarithmic: bool) -> None:
    _, y = axes([10, 20], [level, level * 1.0003], logarithmic)
    low, high = y["scale"]["domain"]
    assert low < level < level * 1.0003 < high
    assert y["axis"]["format"] == ".3~g"
    assert len({f"{value:.3g}" for value in np.linspace(low, high, 4)}) == 4


def test_numbers_that_differ_fill_their_panel() -> None:
    _, y = axes([10, 20], [6.0, 4.0])
    assert y["scale"]["domain"] == pytest.approx([3.92, 6.08])


def test_a_single_step_stands_in_the_middle_and_is_the_only_label() -> None:
    x, _ = axes([20, 20], [5.0, 4.0])
    assert x["scale"]["domain"] == [19, 21]
    assert x["axis"]["values"] == [20]
