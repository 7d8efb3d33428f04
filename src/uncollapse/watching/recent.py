"""What a detector sees: the last measurements of a watch, and the updates since."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from uncollapse.diagnosis.result import Diagnosis

MEASUREMENTS = 32  # that are kept at hand


@dataclass(frozen=True)
class Recent:
    """The last measurements: tables with a column step, and the last one as a diagnosis.

    `updates` has step, loss and gradient_norm of single updates; those after `since` are new.
    """

    step: int
    since: int
    diagnosis: Diagnosis
    heads: pd.DataFrame
    layers: pd.DataFrame
    optimizer: pd.DataFrame
    updates: pd.DataFrame
