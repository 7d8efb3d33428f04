"""Which cause an alarm names: that of the number that is furthest beyond what it is in healthy runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..short_runs.faults import CAUSES, CORRUPT, FROZEN, RATE, ROUNDING, SCALE, WARMUP
from .judging import TOGETHER, Usual, Watched

TABLE = {  # number -> cause
    "logit bound": SCALE,  # logits that normalised tokens and these weights cannot have
    "update size": RATE,  # updates that are large beside the weights
    "loss spike": CORRUPT,  # a loss that jumps, while nothing else is unusual
    "gradient norm spike": FROZEN,  # gradients that jump, and the loss does not
    "gradient norm rise": FROZEN,
}
OFFSET = 3.0  # logits 2^3 times as large as what tells a row's scores apart: of bfloat16's 8 bits 5 are left for that
NONE = "no alarm"


def named_cause(run: Watched, usual: Usual, threshold: float) -> str:
    """What is named one measurement after the first alarm, which shows how updates have grown."""
    alarm = run.first_alarm(TOGETHER, threshold)
    if alarm is None:
        return NONE
    at = min(int(np.searchsorted(run.steps, alarm)) + 1, len(run.steps) - 1)
    beyond = {score: np.nanmax(_upto(usual.beyond(run, score), at), initial=-np.inf) for score in TABLE}
    cause = TABLE[max(beyond, key=lambda score: beyond[score])]
    if cause == SCALE and run.scores["common offset"][at] > OFFSET:
        return ROUNDING
    if cause == RATE and run.scores["update growth"][1] < 0:  # a warm-up makes the first updates grow
        return WARMUP
    return cause


def _upto(values: np.ndarray, at: int) -> np.ndarray:
    return values[max(0, at - 1) : at + 1]


def confusion(runs: Sequence[Watched], usual: Usual, threshold: float) -> pd.DataFrame:
    """How often each cause (cause) is called what (named), over runs that failed."""
    pairs = [(run.cause, named_cause(run, usual, threshold)) for run in runs if run.failed is not None]
    counted = pd.Series(pairs, dtype=object).value_counts()
    rows = [(cause, named, int(counted.get((cause, named), 0))) for cause in CAUSES for named in (*CAUSES, NONE)]
    return pd.DataFrame(rows, columns=["cause", "named", "runs"])
