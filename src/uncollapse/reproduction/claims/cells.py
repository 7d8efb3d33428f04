"""Cells: results of trained networks, one JSON file each, under `results/cells/`.

A cell is {"artefact": "hopfield-main-gpt2", "method": "self-attention", "seed": 0, "settings": {"model": "small"},
"numbers": {"perplexity": 22.9}}, with "curves" over the updates beside them; further keys are ignored. Cells with the
same artefact, settings and method differ by their seed alone. A comparison is made within one artefact and one set of
settings, apart from the method's own numbers (alpha, alpha_hidden, kappa_scale, kappa_mean).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import linregress
from scipy.stats import t as student

from .claim import PENDING, Evidence, Run, judge

Cell = Mapping[str, Any]
Number = str | Callable[[Cell], float | None]  # the name of a number of a cell, or computed from the cell
Wanted = Callable[[float, float], bool | None]  # of a confidence interval: as claimed, opposed, or neither
FEWEST_SEEDS = 2  # below, there is no standard error
FEWEST_LEVELS = 3  # of kappa_2: two would leave no scatter about a line
TINY = "tiny"  # the scale of cells that only try the code
CONFIDENCE = 0.95
OWN_SETTINGS = ("alpha", "alpha_hidden", "kappa_scale", "kappa_mean")  # of the method; the one compared with has none


def cells(artefact: str, folder: Path) -> list[Cell]:
    """The cells of an artefact, sorted by file name; an artefact ending in * stands for all that begin like it.

    >>> cells("hopfield-main-gpt2", Path("no/such/folder"))
    []
    """
    if not folder.is_dir():
        return []
    every = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.json"))]
    every = [cell for cell in every if cell.get("settings", {}).get("scale") != TINY]
    if artefact.endswith("*"):
        return [cell for cell in every if str(cell.get("artefact", "")).startswith(artefact[:-1])]
    return [cell for cell in every if cell.get("artefact") == artefact]


def read(cell: Cell, number: Number) -> float | None:
    """A number of a cell, by its name or computed from the cell; None if the cell does not have it."""
    if callable(number):
        return number(cell)
    value = cell.get("numbers", {}).get(number)
    return None if value is None else float(value)


def named(number: Number) -> str:
    """What a number is called in a sentence."""
    if not callable(number):
        return number
    words = (number.__doc__ or "").rstrip(".")
    return words[:1].lower() + words[1:]


def values(found: Sequence[Cell], method: str, number: Number) -> dict[tuple[str, str], list[float]]:
    """The number of a method, a list over the seeds, by (artefact and settings, the method's own settings)."""
    grouped: dict[tuple[str, str], list[float]] = {}
    for cell in found:
        value = read(cell, number)
        if cell.get("method") == method and value is not None:
            grouped.setdefault((shared(cell), own(cell)), []).append(value)
    return grouped


def shared(cell: Cell) -> str:
    """Artefact and settings that cells must have in common to be compared."""
    settings = sorted(cell.get("settings", {}).items())
    return ", ".join(
        [str(cell["artefact"]), *(f"{name} {value}" for name, value in settings if name not in OWN_SETTINGS)]
    )


def own(cell: Cell) -> str:
    """The method's own settings."""
    settings = sorted(cell.get("settings", {}).items())
    return ", ".join(f"{name} {value}" for name, value in settings if name in OWN_SETTINGS)


def waiting(run: Run, artefacts: Sequence[str]) -> Evidence:
    """The evidence while cells are missing."""
    there = sum(len(cells(artefact, run.cells)) for artefact in artefacts)
    state = f"{there} cells are in, too few to tell" if there else "No trained networks are in yet"
    return Evidence(
        PENDING, f"{state}: this is decided by the cells of {', '.join(artefacts)}.", {"cells found": there}
    )


def compare(
    run: Run,
    artefacts: Sequence[str],
    number: Number,
    method: str,
    against: str,
    wanted: Wanted,
    *,
    some: bool = False,
    share: float = 1.0,
) -> Evidence:
    """Whether `method` stands to `against` as claimed in every setting that both were trained in, or in `some`.

    `wanted` judges the confidence interval of the difference (Student, seeds taken as independent). With a `share`
    below 1 the number must also be below that share of the other's for the claim to hold in full.
    """
    found = [cell for artefact in artefacts for cell in cells(artefact, run.cells)]
    ours = values(found, method, number)
    theirs = {shared: seeds for (shared, _), seeds in values(found, against, number).items()}
    pairs = {
        f"{shared}, {own}".rstrip(", "): (seeds, theirs[shared])
        for (shared, own), seeds in ours.items()
        if shared in theirs and min(len(seeds), len(theirs[shared])) >= FEWEST_SEEDS
    }
    confidence = 1.0 - (1.0 - CONFIDENCE) / len(pairs) if some and pairs else CONFIDENCE  # one of many may be luck
    numbers: dict[str, float | int | str] = {}
    agree, in_full = [], []
    for name, (left, right) in pairs.items():
        difference, half = interval(left, right, confidence)
        agree.append(wanted(difference - half, difference + half))
        in_full.append(agree[-1] is True and (share == 1.0 or np.mean(left) <= share * np.mean(right)))
        numbers[f"{name}: difference of {named(number)}"] = f"{difference:.4g} ± {half:.2g}"
    what = f"{method} against {against}, {named(number)}"
    if some:
        in_full = [any(in_full)]
    return _decided(run, artefacts, what, agree, in_full, numbers)


def _decided(
    run: Run,
    artefacts: Sequence[str],
    what: str,
    agree: Sequence[bool | None],
    in_full: Sequence[bool],
    numbers: Mapping[str, float | int | str],
) -> Evidence:
    """From what the intervals say (as claimed, opposed, or neither) to a verdict."""
    if not agree:
        return waiting(run, artefacts)
    yes, no = sum(one is True for one in agree), sum(one is False for one in agree)
    counted = (
        f"{what}: as claimed in {yes} of {len(agree)} settings, opposed in {no}, undecided in {len(agree) - yes - no}, "
        f"at {CONFIDENCE:.0%} confidence over seeds."
    )
    if yes == no == 0:
        return Evidence(PENDING, f"{counted} More seeds are needed.", numbers)
    return Evidence(judge(all(in_full), yes > 0), counted, numbers)


def trend(run: Run, artefacts: Sequence[str], number: Number, methods: Sequence[str], wanted: Wanted) -> Evidence:
    """Whether a number changes with kappa_2 as claimed: the slope over the rank of kappa_2, in every setting.

    `methods` are those that share kappa_1 and differ in kappa_2. All seeds go into one straight line; the scatter about
    it gives the confidence interval of its slope (Student).
    """
    found = [cell for artefact in artefacts for cell in cells(artefact, run.cells) if cell.get("method") in methods]
    points: dict[str, list[tuple[float, float]]] = {}
    for cell in found:
        kappa, value = cell.get("settings", {}).get("kappa_mean"), read(cell, number)
        if kappa is not None and value is not None:
            points.setdefault(shared(cell), []).append((float(kappa), value))
    numbers: dict[str, float | int | str] = {}
    agree = []
    for name, own_points in points.items():
        levels = sorted({kappa for kappa, _ in own_points})
        if len(levels) < FEWEST_LEVELS or len(own_points) <= FEWEST_LEVELS:
            continue
        fit = linregress([levels.index(kappa) for kappa, _ in own_points], [value for _, value in own_points])
        half = float(student.ppf(0.5 + CONFIDENCE / 2, len(own_points) - 2) * fit.stderr)
        agree.append(wanted(float(fit.slope) - half, float(fit.slope) + half))
        numbers[f"{name}: change of {named(number)} a step of kappa_2"] = f"{fit.slope:.4g} ± {half:.2g}"
    return _decided(run, artefacts, f"{named(number)} over kappa_2", agree, [one is True for one in agree], numbers)


def level(run: Run, artefacts: Sequence[str], number: Number, methods: Sequence[str], wanted: Wanted) -> Evidence:
    """Whether a number of each method itself is as claimed: the confidence interval of its mean over seeds."""
    found = [cell for artefact in artefacts for cell in cells(artefact, run.cells)]
    numbers: dict[str, float | int | str] = {}
    agree = []
    for method in methods:
        for (setting, ours), seeds in values(found, method, number).items():
            if len(seeds) >= FEWEST_SEEDS:
                mean, half = interval(seeds, [0.0, 0.0])
                agree.append(wanted(mean - half, mean + half))
                numbers[f"{setting}, {ours}, {method}: {named(number)}"] = f"{mean:.4g} ± {half:.2g}"
    return _decided(run, artefacts, named(number), agree, [one is True for one in agree], numbers)


def interval(ours: Sequence[float], theirs: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
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
    half = student.ppf(0.5 + confidence / 2, freedom) * np.sqrt(error)
    return float(a.mean() - b.mean()), float(half)


def below_zero(low: float, high: float) -> bool | None:
    """The difference is negative: yes, no, or undecided."""
    return True if high < 0.0 else False if low > 0.0 else None


def above_zero(low: float, high: float) -> bool | None:
    """The difference is positive: yes, no, or undecided."""
    return below_zero(-high, -low)


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
