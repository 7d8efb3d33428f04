"""Tables of a watch with a known course, for the tests of detectors."""

from __future__ import annotations

import numpy as np
import pandas as pd

from uncollapse.diagnosis.result import Diagnosis
from uncollapse.watching import Recent


def recent(heads=None, updates=None, optimizer=None, since=0, layers=None, settings=None, not_finite=None):
    """What a detector sees; the last step is that of the heads or of the updates."""
    heads = pd.DataFrame(columns=["step", "layer", "head"]) if heads is None else heads
    updates = pd.DataFrame(columns=["step", "loss", "gradient_norm"]) if updates is None else updates
    optimizer = pd.DataFrame(columns=["step", "layer"]) if optimizer is None else optimizer
    layers = pd.DataFrame(columns=["step", "layer"]) if layers is None else layers
    step = int(max((table["step"].max() for table in (heads, updates, optimizer) if len(table)), default=0))
    empty = pd.DataFrame()
    last = heads[heads["step"] == step].drop(columns="step")
    diagnosis = Diagnosis(
        layers[layers["step"] == step].drop(columns="step") if len(layers) else empty,
        last,
        {"cosine": empty, "entropy": empty},
        empty,
        empty,
        info={"settings": settings or {}},
        not_finite=not_finite,
    )
    return Recent(step, since, diagnosis, heads, layers, optimizer, updates)


def heads_table(steps, **columns):
    """Heads over steps: each column maps (layer, head) to values over the steps."""
    places = sorted({place for column in columns.values() for place in column})
    rows = []
    for i, step in enumerate(steps):
        for place in places:
            values = {name: column[place][i] for name, column in columns.items() if place in column}
            rows.append({"step": step, "layer": place[0], "head": place[1], **values})
    return pd.DataFrame(rows)


def updates_table(values, column="loss"):
    table = pd.DataFrame({"step": np.arange(1, len(values) + 1), "loss": np.nan, "gradient_norm": np.nan})
    return table.assign(**{column: values})
