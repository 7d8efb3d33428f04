"""What is compared: measures of a run with their words, and their numbers at the end of training."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from .grouping import Group
from .reading import RecordedRun

CONFIDENCE = 0.95
FEWEST = 3  # seeds below which resampling says nothing
SMALL = 1e-3  # numbers below it are written with a power of ten
DIAGNOSED = re.compile(r"diagnose/layer_(\d+)/(\w+)")


@dataclass(frozen=True)
class Measure:
    """A number of a run: its key, words, and whether more of it is better (None: neither)."""

    key: str
    words: str
    higher: bool | None = None


LOSSES = (
    Measure("eval_loss", "evaluation loss", higher=False),
    Measure("eval_perplexity", "evaluation perplexity", higher=False),
)
BITS = Measure("eval_bits_per_byte", "bits per byte", higher=False)
ACCURACY = Measure("eval_accuracy", "evaluation accuracy", higher=True)
TRAINING = Measure("loss", "training loss", higher=False)
COLLAPSE = (
    Measure("residual_ratio", "residual ratio of the last layer"),
    Measure("cosine_mean", "mean cosine of tokens in the last layer"),
    Measure("entropy_normalised", "normalised entropy, mean of layers"),
)
COSTS = (
    Measure("seconds", "training time in seconds"),
    Measure("tokens_per_second", "tokens a second"),
    Measure("images_per_second", "images a second"),
    Measure("peak_memory", "peak memory in MB"),
)


def task_measures(task: str, same_tokens: bool) -> list[Measure]:
    """The measures of a task, the one that findings are about first; with different tokens, bits per byte only."""
    if task == "images":
        return [ACCURACY, LOSSES[0], TRAINING]
    return [BITS, *LOSSES, TRAINING] if same_tokens else [BITS]


def layer_history(run: RecordedRun) -> pd.DataFrame:
    """What diagnoses logged of layers: step, layer, measure, value."""
    found = run.metrics["measure"].str.extract(f"^{DIAGNOSED.pattern}$")
    kept = found[0].notna()
    return pd.DataFrame(
        {
            "step": run.metrics.loc[kept, "step"],
            "layer": found.loc[kept, 0].astype(int),
            "measure": found.loc[kept, 1],
            "value": run.metrics.loc[kept, "value"],
        }
    )


def head_means(run: RecordedRun, key: str) -> pd.DataFrame:
    """What diagnoses logged of heads, such as qk_trace, as the mean over all heads: step, value."""
    kept = run.metrics["measure"].str.fullmatch(rf"diagnose/layer_\d+_head_\d+/{key}")
    return run.metrics[kept].groupby("step", as_index=False)["value"].mean()


def final_value(run: RecordedRun, measure: Measure) -> float | None:
    """The number of a run at its end, if it has one."""
    if measure.key == "peak_memory":
        peak = run.status.get("peak_memory_bytes")
        return None if peak is None else float(peak) / 1e6
    if measure.key == "seconds":
        spent = run.status.get("seconds")
        return run.final("seconds") if spent is None else float(spent)
    if measure in COLLAPSE:
        table = layer_history(run)
        table = table[(table["measure"] == measure.key) & table["value"].notna()]
        if table.empty:
            return None
        last = table[table["step"] == table["step"].max()]
        if measure.key == "entropy_normalised":
            return float(last["value"].mean())
        return float(last.loc[last["layer"].idxmax(), "value"])
    return run.final(measure.key)


def final_table(groups: Sequence[Group], measures: Sequence[Measure]) -> pd.DataFrame:
    """A row a measure and group: mean, spread (standard deviation) and bootstrap interval over finished runs.

    Without two seeds the spread, and without three the interval, is NaN.
    """
    rows = []
    for measure in measures:
        for group in groups:
            values = [v for v in (final_value(run, measure) for run in group.finished) if v is not None]
            if values:
                rows.append((measure.key, measure.words, group.name, *summarise(values), len(values)))
    return pd.DataFrame(rows, columns=["measure", "words", "group", "mean", "spread", "low", "high", "seeds"])


def shown(row: Mapping[Hashable, Any], value: float | None = None) -> str:
    """The mean, or a value beside it, with the digits that the spread leaves meaning to.

    >>> shown({"mean": 2.96953, "spread": 0.0141})
    '2.970'
    >>> shown({"mean": 2.96953, "spread": math.nan})
    '2.97'
    >>> shown({"mean": 5.0821e-06, "spread": 9.1e-07})
    '5.08e-06'
    """
    value = row["mean"] if value is None else value
    spread, mean = row["spread"], abs(row["mean"])
    if not spread > 0:
        return f"{value:.4g}"
    if max(mean, spread) < SMALL:
        powers = math.floor(math.log10(abs(value) or spread)) - math.floor(math.log10(spread))
        return f"{value:.{max(0, min(powers + 1, 4))}e}"
    digits = 1 - math.floor(math.log10(spread))
    most = 4 - (math.floor(math.log10(mean)) if mean > 0 else -4)
    return f"{value:.{max(0, min(digits, most))}f}"


def summarise(numbers: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean, spread (standard deviation) and bootstrap interval over seeds; NaN where there are too few.

    >>> summarise([1.0, 3.0])
    (2.0, 1.4142135623730951, nan, nan)
    """
    values = np.asarray(numbers, dtype=float)
    mean = float(values.mean())
    spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    if len(values) < FEWEST:
        return mean, spread, math.nan, math.nan
    if np.ptp(values) == 0:
        return mean, spread, mean, mean
    found = bootstrap(
        (values,), np.mean, confidence_level=CONFIDENCE, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return mean, spread, float(found.low), float(found.high)
