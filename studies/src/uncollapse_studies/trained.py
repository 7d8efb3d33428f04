"""Trained networks: our numbers beside the printed ones, differences between methods, and what was scaled down."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from uncollapse.metrics.similarity import ALIGNED
from uncollapse.statistics import Difference, difference
from uncollapse.training.compare.measures import Measure, shown

from .artefact import NOT_SEEN, TREND, ArtefactCells
from .cells.cell import Cell
from .printed import PRINTED

MEASURES = {
    "perplexity": Measure("perplexity", "perplexity", higher=False),
    "accuracy": Measure("accuracy", "accuracy in %", higher=True),
    "eval_loss": Measure("eval_loss", "held-out loss", higher=False),
    "cosine_aligned": Measure(
        "cosine_aligned", f"share of token pairs with a cosine above {ALIGNED:g}, mean of layers"
    ),
    "cosine_mean": Measure("cosine_mean", "cosine of token pairs, mean of layers"),
    "residual_ratio": Measure("residual_ratio", "residual ratio after the last layer"),
    "entropy_mean": Measure("entropy_mean", "entropy of attention rows in nats, mean of heads"),
    "entropy_normalised": Measure(
        "entropy_normalised", "entropy of attention rows over the largest possible, mean of heads"
    ),
    "entropy_without_bias": Measure("entropy_without_bias", "the same number with the query biases set to 0"),
    "localisation": Measure("localisation", "localisation of rho, mean of heads (0: all keys alike, 1: one key)"),
    "propagation_mean": Measure("propagation_mean", "rho, mean of keys and heads"),
    "qk_trace": Measure("qk_trace", "tr W_QK, mean of heads"),
    "qk_scale": Measure("qk_scale", "tr W_QK' W_QK, mean of heads"),
}


def row(values: Sequence[float]) -> dict[Hashable, Any]:
    """Mean, spread (standard deviation) and number of seeds."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return {"mean": float(np.mean(values)), "spread": spread, "seeds": len(values)}


def means(found_cells: ArtefactCells, number: str) -> dict[str, float]:
    """The mean over seeds of every label that has the number."""
    return {label: float(np.mean(values)) for label, values in found_cells.numbers(number).items()}


def against(found_cells: ArtefactCells, number: str, base: str, other: str) -> Difference:
    """One label against another; both have the number."""
    found = found_cells.numbers(number)
    return difference(number, found[base], found[other])


def agreement(sign: int, expected: int) -> str:
    """The verdict on one comparison at a smaller scale than the paper's."""
    if sign == expected:
        return TREND
    return NOT_SEEN if sign == 0 else f"{NOT_SEEN}: the opposite"


def in_all(verdicts: Sequence[str], what: str = "statements") -> str:
    """One verdict from several: the trend in all of them, in some, or in none, and how many are the opposite."""
    seen, opposite = sum(v == TREND for v in verdicts), sum("opposite" in v for v in verdicts)
    if seen == len(verdicts):
        return TREND
    if opposite == len(verdicts):
        return f"{NOT_SEEN}: the opposite"
    contrary = f" (the opposite in {opposite} of {len(verdicts)} {what})" if opposite else ""
    if not seen:
        return NOT_SEEN + contrary
    return f"{TREND} in {seen} of {len(verdicts)} {what}" + (f", the opposite in {opposite}" if opposite else "")


def better(number: str, found: Difference) -> str:
    """What a difference is in words."""
    if not found.sign:
        return "not distinguishable"
    higher = MEASURES[number].higher
    if higher is None:
        return "higher" if found.sign > 0 else "lower"
    return "better" if (found.sign > 0) == higher else "worse"


def beside(found_cells: ArtefactCells, numbers: Sequence[str], base: str | None = None) -> pd.DataFrame:
    """A row a label: our numbers, the first one's difference from `base`, and the printed one if the paper has one."""
    printed = PRINTED.get(found_cells.artefact.id)
    tables = {number: found_cells.numbers(number) for number in numbers}
    found = []
    for label in found_cells.labels:
        line: dict[str, Any] = {"method": label}
        for number, values in tables.items():
            line[number] = _number(values[label]) if label in values else ""
            if number == numbers[0] and base is not None:
                apart = label != base and {label, base} <= set(values)
                line[f"against {base}"] = str(against(found_cells, number, base, label)) if apart else ""
        line["seeds"] = len(tables[numbers[0]].get(label, []))
        if printed is not None:
            value = printed.values.get(label)
            line[f"printed {printed.number} ({printed.setting})"] = "" if value is None else f"{value:g}"
        found.append(line)
    table = pd.DataFrame(found).fillna("")
    return table.loc[:, (table != "").any()]  # a probe has no diagnoses


def _number(values: Sequence[float]) -> str:
    own = row(values)
    return shown(own) + (f" ± {shown(own, own['spread'])}" if own["seeds"] > 1 else "")


def legend(names: Sequence[str]) -> str:
    """What the columns of a table are, for those whose names do not say it."""
    told = [f"*{name}*: {MEASURES[name].words}" for name in names if name in MEASURES and MEASURES[name].words != name]
    return "; ".join(told) + "." if told else ""


def main_number(found_cells: ArtefactCells) -> str:
    """Perplexity for language, accuracy for images."""
    return "perplexity" if any("perplexity" in r["numbers"] for _, r in found_cells.records) else "accuracy"


def settings(found_cells: ArtefactCells) -> dict[str, Any]:
    """For the record of an artefact."""
    cells = found_cells.cells
    return {"budget": cells[0].budget, "cells": len(cells), "in": len(found_cells.records), "recipe": cells[0].recipe}


def scaled_down(found_cells: ArtefactCells) -> str:
    """What is smaller than in the paper, in words: ours and the paper's setting."""
    if found_cells.cells[0].budget == "paper":
        return "The paper's own setting."
    ours, theirs = described(found_cells.cells), described(found_cells.artefact.all_cells("paper", 1))
    recipe = found_cells.cells[0].recipe
    return f"Scaled down. Here: {ours} (recipe {recipe}). The paper's, with `--budget paper`: {theirs}."


def described(cells: Sequence[Cell]) -> str:
    """Data, size of the network and budget of cells that differ in the method, and perhaps in depth."""
    s: Mapping[str, Any] = cells[0].settings
    words = f"{s['vocab_size']:,} {'words' if s['family'] == 'post-norm' else 'tokens'}, " if "vocab_size" in s else ""
    data = f"{words}length {s['length']:,}" if "length" in s else f"{s['image_size']} pixels"
    depths = sorted({int(cell.settings["layers"]) for cell in cells})
    layers = f"{depths[0]} to {depths[-1]} layers" if len(depths) > 1 else f"{depths[0]} layer{'s' * (depths[0] > 1)}"
    heads = f"{s['heads']} head{'s' * (s['heads'] > 1)}"
    length = f"{s['steps']:,} updates" if "steps" in s else f"{s['epochs']:g} epochs in batches"
    held_out = cells[0].resolved().eval_examples
    evaluated = f", evaluated on {held_out:,} examples" if held_out else ""
    return (
        f"{s['data']}, {data}, {layers} of width {s['width']}, {heads}, {length} of {s['batch_size']:,}, rate "
        f"{s['learning_rate']:g}{evaluated}"
    )
