"""The page over training, from the files of one or more watched runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from uncollapse.diagnosis.pages import footer
from uncollapse.diagnosis.thresholds import SATURATED_GAP
from uncollapse.extras import require

from .detectors.forecast import REACH, by_step, trend
from .reading import WatchedRun, read

if TYPE_CHECKING:
    from uncollapse.report.watch_page import WatchContent

    from .front import Watch


def write_page(paths: Sequence[Path], out: str | os.PathLike[str], force: bool = False) -> Path:
    """Write the page of one file, or of two to four laid over each other."""
    require("altair", "vl_convert")
    from uncollapse.report.page import write
    from uncollapse.report.watch_page import watch_page

    if not 1 <= len(paths) <= 4:
        raise ValueError(f"a page shows one to four runs, got {len(paths)}.")
    runs = [read(path) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        if run.heads.empty:
            raise ValueError(f"{path} has no heads in it: the watch saw no attention.")
    return write(watch_page(content_of(_names(paths), runs), footer()), out, force)


def notebook_view(name: str, watched: Watch) -> str:
    """What a notebook shows of a watch."""
    from uncollapse.report.watch_page import watch_notebook_html

    tables = watched.heads, watched.layers, watched.optimizer, watched.updates, watched.warnings
    run = WatchedRun({"model": name}, *tables)
    if run.heads.empty:
        return f"<div><b>{escape(name)}, watched</b>: nothing is measured yet.</div>"
    return watch_notebook_html(content_of([name], [run]))


def content_of(names: Sequence[str], runs: Sequence[WatchedRun]) -> WatchContent:
    """Watched runs in the form that `report/` takes."""
    from uncollapse.report.watch_page import WatchContent

    return WatchContent(
        names,
        [_about(run) for run in runs],
        [run.heads for run in runs],
        [run.updates for run in runs],
        [run.warnings for run in runs],
        pd.concat([forecasts(run.heads).assign(report=n) for n, run in enumerate(runs, start=1)], ignore_index=True),
        {"gap_mean": SATURATED_GAP},
        [
            f"{name}: {run.cut} lines were cut off and left out."
            for name, run in zip(names, runs, strict=True)
            if run.cut
        ],
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """The names of the files, with their folders where they are alike."""
    stems = [path.stem for path in paths]
    return stems if len(set(stems)) == len(stems) else [f"{path.parent.name}/{path.stem}" for path in paths]


def _about(run: WatchedRun) -> str:
    steps = run.heads["step"]
    layers, heads = run.heads["layer"].nunique(), len(run.heads[["layer", "head"]].drop_duplicates())
    return (
        f"{run.about.get('model', 'a model')}: {layers} layers, {heads} heads; {steps.nunique()} measurements from "
        f"update {steps.min():,} to {steps.max():,}."
    )


def forecasts(heads: pd.DataFrame) -> pd.DataFrame:
    """The trends of heads that grow, carried on to saturation: column, layer, head, and two ends of a line."""
    rows = []
    for column in ("logit_max", "gap_mean"):
        wide = by_step(heads, column)
        if len(wide) < 2 or wide.empty:
            continue
        steps = wide.index.to_numpy(dtype=float)
        found = trend(steps, wide.to_numpy())
        ahead = _until_saturated(heads, REACH * (steps[-1] - steps[0]))
        for place, (layer, head) in enumerate(wide.columns):
            if found.grows[place] and (until := ahead.get((layer, head), 0.0)) > 0:
                for far in np.linspace(0.0, until, 9):
                    value = found.last[place] * np.exp(found.slope[place] * far)
                    rows.append((column, layer, head, steps[-1] + far, value))
    return pd.DataFrame(rows, columns=["column", "layer", "head", "step", "value"])


def _until_saturated(heads: pd.DataFrame, reach: float) -> dict[tuple[int, int], float]:
    """Updates until the mean gap of each growing head is that of a saturated one, as far as a trend reaches."""
    wide = by_step(heads, "gap_mean")
    if len(wide) < 2:
        return {}
    found = trend(wide.index.to_numpy(dtype=float), wide.to_numpy())
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = np.log(SATURATED_GAP / found.last) / found.slope
    return {
        place: float(min(ahead[i], reach)) for i, place in enumerate(wide.columns) if found.grows[i] and ahead[i] > 0
    }
