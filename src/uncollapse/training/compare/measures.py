"""What is compared: the measures of a run, and their final numbers over seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from uncollapse.statistics import FEWEST, summarise

from .grouping import Group
from .reading import RecordedRun

SMALL = 1e-3  # numbers below it are written with a power of ten
DIAGNOSED = re.compile(r"diagnose/layer_(\d{1,9})/(\w+)")


@dataclass(frozen=True)
class Measure:
    """A number of a run: its key, what it is called, and whether higher is better (None: neither)."""

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
    Measure("tokens_per_second", "tokens per second"),
    Measure("images_per_second", "images per second"),
    Measure("peak_memory", "peak memory in MB"),
)


def task_measures(task: str, same_tokens: bool) -> list[Measure]:
    """The measures of a task, the main one first; with different tokenisers, bits per byte only."""
    if task == "images":
        return [ACCURACY, LOSSES[0], TRAINING]
    return [BITS, *LOSSES, TRAINING] if same_tokens else [BITS]


def layer_history(run: RecordedRun) -> pd.DataFrame:
    """What diagnoses logged for each layer: step, layer, measure, value."""
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
    """A number that diagnoses logged for each head, such as qk_trace, as the mean over all heads: step, value."""
    kept = run.metrics["measure"].str.fullmatch(rf"diagnose/layer_\d+_head_\d+/{key}")
    return run.metrics[kept].groupby("step", as_index=False)["value"].mean()


def final_value(run: RecordedRun, measure: Measure) -> float | None:
    """The number of a run at the end of training, or None if it has none."""
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
    """One row per measure and group: mean, spread (standard deviation) and the ends of the mean's 95 % interval.

    They are over the finished runs. With one seed, spread and interval are NaN.
    """
    rows = []
    for measure in measures:
        for group in groups:
            values = [v for v in (final_value(run, measure) for run in group.finished) if v is not None]
            if values:
                rows.append((measure.key, measure.words, group.name, *_numbers(values)))
    return pd.DataFrame(rows, columns=["measure", "words", "group", "mean", "spread", "low", "high", "seeds"])


def _numbers(values: Sequence[float]) -> tuple[float, float, float, float, int]:
    """Mean, spread, both ends of the interval, and the number of seeds."""
    summary = summarise(values)
    if summary.seeds < FEWEST:
        return summary.mean, math.nan, math.nan, math.nan, summary.seeds
    mean = summary.estimate()
    return summary.mean, summary.spread, mean.low, mean.high, summary.seeds


def shown(row: Mapping[Hashable, Any], value: float | None = None) -> str:
    """The mean, or another value of its row, with as many digits as the spread makes meaningful.

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
