"""Trained networks: our numbers beside the printed ones, and what a difference is worth."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from uncollapse.training.compare.findings import weigh
from uncollapse.training.compare.measures import FEWEST, Measure, shown, summarise

from .artefact import NOT_SEEN, TREND, Gathered
from .printed import PRINTED

MEASURES = {
    "perplexity": Measure("perplexity", "perplexity", higher=False),
    "accuracy": Measure("accuracy", "accuracy in %", higher=True),
    "cosine_aligned": Measure("cosine_aligned", "share of token pairs with a cosine above 0.99, mean of layers"),
    "entropy_mean": Measure("entropy_mean", "entropy of attention rows in nats, mean of heads"),
    "localisation": Measure("localisation", "localisation of rho, mean of heads"),
}
ONE_SEED = {"accuracy": 2.0}  # points: with one seed a smaller difference is taken for chance
ONE_SEED_SHARE = 0.02  # the same for other numbers, as a share


Row = dict[Hashable, Any]


def row(values: Sequence[float]) -> Row:
    """Mean, spread and interval over seeds, as the words of comparisons take them."""
    return {**dict(zip(("mean", "spread", "low", "high"), summarise(values), strict=True)), "seeds": len(values)}


def rows(gathered: Gathered, number: str) -> dict[str, Row]:
    """The same of every label that is in."""
    return {label: row(values) for label, values in gathered.numbers(number).items()}


def direction(base: Row, other: Row, number: str) -> int:
    """-1, 0 or 1: whether the other is lower, not distinguishable, or higher.

    With three seeds or more the bootstrap intervals must not overlap; with two, the means must differ by more than the
    larger spread; with one, by more than 2 points of accuracy or 2 % of another number.
    """
    gap = other["mean"] - base["mean"]
    if min(base["seeds"], other["seeds"]) >= FEWEST:
        apart = other["low"] > base["high"] or other["high"] < base["low"]
    elif min(base["seeds"], other["seeds"]) > 1:
        apart = abs(gap) > max(base["spread"], other["spread"])
    else:
        apart = abs(gap) > ONE_SEED.get(number, ONE_SEED_SHARE * abs(base["mean"]))
    return 0 if not apart else int(math.copysign(1, gap))


def agreement(found: int, expected: int) -> str:
    """The verdict on one comparison at a smaller scale than the paper's."""
    if expected == found:
        return TREND
    return NOT_SEEN if found == 0 else f"{NOT_SEEN}: the opposite"


def compared(number: str, base: str, other: str, found: Mapping[str, Row]) -> str:
    """A sentence on two labels."""
    measure = MEASURES[number]
    left, right = found[base], found[other]
    words = measure.words[0].upper() + measure.words[1:]
    return f"{words}: {other} {shown(right)} against {base} {shown(left)}, {weigh(measure, left, right)}."


def beside(gathered: Gathered, numbers: Sequence[str]) -> pd.DataFrame:
    """Ours, with the printed number where the paper has one; a row a label."""
    printed = PRINTED.get(gathered.artefact.id)
    tables = {number: rows(gathered, number) for number in numbers}
    found = []
    for label in gathered.labels:
        line: dict[str, Any] = {"method": label}
        for number, by_label in tables.items():
            if label in by_label:
                own = by_label[label]
                spread = f" ± {shown(own, own['spread'])}" if own["seeds"] > 1 else ""
                line[number] = f"{shown(own)}{spread}"
                line["seeds"] = own["seeds"]
        if printed is not None:
            value = printed.values.get(label)
            line[f"printed {printed.number} ({printed.setting})"] = "" if value is None else f"{value:g}"
        found.append(line)
    return pd.DataFrame(found).fillna("")


def main_number(gathered: Gathered) -> str:
    """Perplexity for language, accuracy for images."""
    return "perplexity" if any("perplexity" in r["numbers"] for _, r in gathered.records) else "accuracy"


def settings(gathered: Gathered) -> dict[str, Any]:
    """For the record of an artefact."""
    cells = gathered.cells
    return {"scale": cells[0].scale, "cells": len(cells), "in": len(gathered.records), "recipe": cells[0].recipe}


def scaled_down(gathered: Gathered) -> str:
    """What is smaller than in the paper, in words."""
    cell = next(iter(gathered.records))[0] if gathered.records else gathered.cells[0]
    if cell.scale == "paper":
        return "The paper's own setting."
    s = cell.settings
    what = "words" if s.get("family") == "post-norm" else "tokens" if "vocab_size" in s else ""
    data = f"{s['vocab_size']:,} {what}, length {s['length']}" if what else f"{s.get('image_size')} pixels"
    layers, heads = (f"{s[name]} {name[:-1]}{'s' * (s[name] > 1)}" for name in ("layers", "heads"))
    return (
        f"Scaled down: {s['data']}, {data}, {layers} of width {s['width']}, {heads}, {s['steps']} updates of "
        f"{s['batch_size']}, rate {s['learning_rate']:g}; recipe {cell.recipe}."
    )
