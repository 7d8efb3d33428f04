"""Figure 1 of the second paper: softmax and its piecewise-linear form for two-dimensional scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch

from uncollapse.theory import piecewise_softmax

from ..figure import Result, Size

REACH = 4.0  # scores from -REACH to REACH
SOFTMAX, PIECEWISE = "softmax S", "piecewise linear S~"


def surface(points: int) -> pd.DataFrame:
    """The first component of both functions on a grid of scores (w1, w2)."""
    axis = torch.linspace(-REACH, REACH, points, dtype=torch.float64)
    scores = torch.cartesian_prod(axis, axis)
    values = {SOFTMAX: scores.softmax(dim=-1)[:, 0], PIECEWISE: piecewise_softmax(scores)[:, 0]}
    return pd.concat(
        [
            pd.DataFrame({"w1": scores[:, 0], "w2": scores[:, 1], "function": name, "value": value})
            for name, value in values.items()
        ],
        ignore_index=True,
    )


def figure(size: Size, tick: Callable[[], object]) -> Result:
    """Surface and cross-section."""
    from ..charts.softmax_chart import softmax_chart

    points = 29 if size == "full" else 5
    table = surface(points)
    section = table[np.isclose(table["w2"], 0.0)].pivot(index="w1", columns="function", values="value")
    gap = (section[SOFTMAX] - section[PIECEWISE]).abs()
    sentences = [
        "Both depend on w1 - w2 alone; the piecewise form is the softmax's tangent at the origin, cut off at 0 and 1.",
        f"Along w2 = 0 they differ by at most {gap.max():.3f}, at w1 = {abs(gap.idxmax()):.2g}.",
    ]
    return Result(
        table=table,
        chart=softmax_chart(table),
        sentences=sentences,
        reading_aid="Left and middle: colour is the weight of the first of two tokens. Right: a cut at w2 = 0.",
        summary=section.round(3).rename_axis(columns=None).reset_index().iloc[:: max(1, points // 8)],
        settings={"points": points, "reach": REACH},
    )
