"""Cells: results of trained networks, one JSON file each, under `results/cells/`.

A cell is {"artefact": "hopfield-main-gpt2", "method": "self-attention", "seed": 0, "settings": {"model": "small"},
"numbers": {"perplexity": 22.9}}; further keys are ignored. Cells with the same artefact, settings and method differ by
their seed alone. A comparison is made within one artefact and one set of settings, apart from the method's own numbers
(alpha, alpha_hidden, kappa_scale, kappa_mean).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from .claim import HOLDS, PENDING, Evidence, Run, judge

Cell = Mapping[str, Any]
FEWEST_SEEDS = 2  # below, there is no standard error
CONFIDENCE = 0.95
OWN_SETTINGS = ("alpha", "alpha_hidden", "kappa_scale", "kappa_mean")  # of the method; the one compared with has none


def cells(artefact: str, folder: Path) -> list[Cell]:
    """The cells of an artefact, sorted by file name; an artefact ending in * stands for all that begin like it.

    >>> cells("hopfield-main-gpt2", Path("no/such/folder"))
    []
    """
    if not folder.is_dir():
        return []
    read = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.json"))]
    if artefact.endswith("*"):
        return [cell for cell in read if str(cell.get("artefact", "")).startswith(artefact[:-1])]
    return [cell for cell in read if cell.get("artefact") == artefact]


def values(found: Sequence[Cell], method: str, number: str) -> dict[tuple[str, str], list[float]]:
    """The number of a method, a list over the seeds, by (artefact and settings, alpha and alpha')."""
    grouped: dict[tuple[str, str], list[float]] = {}
    for cell in found:
        if cell.get("method") == method and number in cell.get("numbers", {}):
            settings = {name: f"{name} {value}" for name, value in sorted(cell.get("settings", {}).items())}
            own = [text for name, text in settings.items() if name in OWN_SETTINGS]
            shared = [text for name, text in settings.items() if name not in OWN_SETTINGS]
            key = (", ".join([str(cell["artefact"]), *shared]), ", ".join(own))
            grouped.setdefault(key, []).append(float(cell["numbers"][number]))
    return grouped


def waiting(run: Run, artefacts: Sequence[str]) -> Evidence:
    """The evidence while cells are missing."""
    return Evidence(
        PENDING,
        f"No trained networks are in yet: this is decided by the cells of {', '.join(artefacts)}.",
        {"cells found": sum(len(cells(artefact, run.cells)) for artefact in artefacts)},
    )


def compare(
    run: Run,
    artefacts: Sequence[str],
    number: str,
    method: str,
    against: str,
    wanted: Callable[[float, float], bool],
) -> Evidence:
    """Whether `method` stands to `against` as claimed in every setting that both were trained in.

    `wanted(low, high)` says whether the confidence interval of the difference (Student, seeds taken as independent)
    agrees with the claim: for "lower perplexity" it is high < 0.
    """
    found = [cell for artefact in artefacts for cell in cells(artefact, run.cells)]
    ours = values(found, method, number)
    theirs = {shared: seeds for (shared, _), seeds in values(found, against, number).items()}
    pairs = {
        f"{shared}, {own}".rstrip(", "): (seeds, theirs[shared])
        for (shared, own), seeds in ours.items()
        if shared in theirs and min(len(seeds), len(theirs[shared])) >= FEWEST_SEEDS
    }
    if not pairs:
        return waiting(run, artefacts)
    numbers: dict[str, float | int | str] = {}
    agree = []
    for name, (left, right) in pairs.items():
        difference, half = interval(left, right)
        agree.append(wanted(difference - half, difference + half))
        numbers[f"{name}: difference of {number}"] = f"{difference:.4g} ± {half:.2g}"
    verdict = judge(all(agree), any(agree))
    where = "in every setting" if verdict == HOLDS else f"in {sum(agree)} of {len(agree)} settings"
    sentence = f"{method} against {against}: {number} is as claimed {where}, at {CONFIDENCE:.0%} confidence over seeds."
    return Evidence(verdict, sentence, numbers)


def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Difference of two means and half its confidence interval (Welch).

    >>> interval([1.0, 1.0], [3.0, 3.0])
    (-2.0, 0.0)
    """
    a, b = np.asarray(ours), np.asarray(theirs)
    parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    error = parts.sum()
    if error == 0.0:
        return float(a.mean() - b.mean()), 0.0
    freedom = error**2 / (parts**2 / [len(a) - 1, len(b) - 1]).sum()
    half = student.ppf(0.5 + CONFIDENCE / 2, freedom) * np.sqrt(error)
    return float(a.mean() - b.mean()), float(half)


def below_zero(low: float, high: float) -> bool:
    """The difference is negative."""
    return high < 0.0


def above_zero(low: float, high: float) -> bool:
    """The difference is positive."""
    return low > 0.0


def made_up(
    artefact: str, number: str, levels: Mapping[str, float], settings: Sequence[Mapping[str, Any]] = ({},)
) -> list[Cell]:
    """Cells of three seeds around a level for each method, for mutations and tests."""
    return [
        {
            "artefact": artefact,
            "method": method,
            "seed": seed,
            "settings": dict(setting),
            "numbers": {number: level * (1.0 + 0.001 * seed)},
        }
        for setting in settings
        for method, level in levels.items()
        for seed in range(3)
    ]
