"""Trained networks: our numbers beside the printed ones, verdicts on differences, and what was scaled down."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from uncollapse.metrics.similarity import ALIGNED
from uncollapse.statistics import FEWEST, Estimate, differences, summarise
from uncollapse.training.compare.measures import Measure, shown

from .artefact import NOT_SEEN, TREND, UNDECIDED, ArtefactCells
from .cells.cell import Cell
from .printed import PRINTED

OPPOSITE = f"{NOT_SEEN}: the opposite"
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

SMALLEST = {"accuracy": 0.2}  # points: the smallest gain that the first paper prints on CIFAR is 0.19
SMALLEST_SHARE = 0.02  # the same for other numbers, as a share of the base's


def smallest_that_counts(number: str, base: float) -> float:
    """The smallest difference from a base that would matter; a claim is denied only where it is ruled out.

    >>> smallest_that_counts("accuracy", 50.0), smallest_that_counts("perplexity", 50.0)
    (0.2, 1.0)
    """
    return SMALLEST.get(number, SMALLEST_SHARE * abs(base))


def means(found_cells: ArtefactCells, number: str) -> dict[str, float]:
    """The mean over seeds of every label that has the number."""
    return {label: float(np.mean(values)) for label, values in found_cells.numbers(number).items()}


def against(
    found_cells: ArtefactCells, number: str, base: str, others: Collection[str] | None = None
) -> dict[str, Estimate]:
    """Labels against a base, all that have the number by default, with Holm's correction over them."""
    found = {label: summarise(values) for label, values in found_cells.numbers(number).items()}
    kept = [label for label in found if label != base and (others is None or label in others)]
    return differences(found[base], {label: found[label] for label in kept})


def agreement(gap: Estimate, expected: int, smallest: float) -> str:
    """The verdict on a difference that a paper expects to be higher (1) or lower (-1).

    Not seen is what goes the other way, and where a difference as expected that counts is ruled out.
    """
    if gap.verdict != "undecided":
        return TREND if gap.verdict == ("higher" if expected > 0 else "lower") else OPPOSITE
    return NOT_SEEN if gap.excludes(expected * smallest) else UNDECIDED


def in_all(verdicts: Sequence[str], what: str = "statements") -> str:
    """One verdict from several: theirs if they agree, else how often each occurs.

    >>> in_all(["same trend", "undecided", "undecided"])
    'same trend in 1 of 3 statements, undecided in 2'
    """
    kinds = [kind for kind in (TREND, NOT_SEEN, OPPOSITE, UNDECIDED) if kind in verdicts]
    if len(kinds) == 1:
        return kinds[0]
    first, *others = kinds
    told = [f"{first} in {verdicts.count(first)} of {len(verdicts)} {what}"]
    told += [f"{kind.removeprefix(f'{NOT_SEEN}: ')} in {verdicts.count(kind)}" for kind in others]
    return ", ".join(told)


def better(number: str, gap: Estimate) -> str:
    """What a difference means for a number: better or worse, higher or lower, or undecided."""
    higher = MEASURES[number].higher
    if gap.seeds < FEWEST:
        return f"{UNDECIDED} with one seed"
    if gap.verdict == "undecided" or higher is None:
        return gap.verdict
    return "better" if (gap.verdict == "higher") == higher else "worse"


def beside(found_cells: ArtefactCells, numbers: Sequence[str], base: str | None = None) -> pd.DataFrame:
    """One row per label: our numbers, the first one's difference from `base`, and the printed one if there is one."""
    printed = PRINTED.get(found_cells.artefact.id)
    tables = {number: found_cells.numbers(number) for number in numbers}
    gaps = against(found_cells, numbers[0], base) if base is not None and base in tables[numbers[0]] else {}
    found = []
    for label in found_cells.labels:
        line: dict[str, Any] = {"method": label}
        for number, values in tables.items():
            line[number] = _number(values[label]) if label in values else ""
            if number == numbers[0] and base is not None:
                line[f"against {base}"] = str(gaps[label]) if label in gaps else ""
        line["seeds"] = len(tables[numbers[0]].get(label, []))
        if printed is not None:
            value = printed.values.get(label)
            line[f"printed {printed.number} ({printed.setting})"] = "" if value is None else f"{value:g}"
        found.append(line)
    table = pd.DataFrame(found).fillna("")
    return table.loc[:, (table != "").any()]  # a probe has no diagnoses


def _number(values: Sequence[float]) -> str:
    own = summarise(values)
    row: dict[Hashable, float] = {"mean": own.mean, "spread": own.spread}
    return shown(row) + (f" ± {shown(row, own.spread)}" if own.seeds >= FEWEST else "")


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
    """What is smaller than in the paper: our setting and the paper's, as a sentence."""
    if found_cells.cells[0].budget == "paper":
        return " ".join(["The paper's own setting.", *reading(found_cells.cells)])
    ours, theirs = described(found_cells.cells), described(found_cells.artefact.all_cells("paper", 1))
    recipe = found_cells.cells[0].recipe
    told = f"Scaled down. Here: {ours} (recipe {recipe}). The paper's, with `--budget paper`: {theirs}."
    return " ".join([told, *reading(found_cells.cells)])


MULTIPLIED = {
    "stream": "the block's tokens before the norm",
    "normed": "what enters the attention, after the norm",
    "replace": "the block's tokens before the norm, in place of the residual",
}
ADDED_TO = {"update": "the mean loss of an update", "tokens": "the loss summed over the tokens of an update"}


def reading(cells: Sequence[Cell]) -> list[str]:
    """How the paper was read where it leaves something open; nothing where cells differ in just that."""
    networks = [(cell.base or cell).resolved() for cell in cells]
    skips = {network.skip for network in networks if network.alpha or network.learn_alpha}
    penalties = {network.normalisation for network in networks if network.kappa_scale or network.kappa_mean}
    sentences = []
    if len(skips) == 1:
        skip = skips.pop()
        sentences.append(f"The paper leaves open what alpha multiplies; here it is {MULTIPLIED[skip]} (`{skip}`).")
    if len(penalties) == 1:
        added = penalties.pop()
        where = f"{ADDED_TO[added]} (`{added}`)"
        sentences.append(f"The paper leaves open what the penalty is added to; here it is {where}.")
    return sentences


def described(cells: Sequence[Cell]) -> str:
    """Data, size of the network and budget of cells that differ in the method, and perhaps in depth."""
    s: Mapping[str, Any] = cells[0].settings
    resolved = cells[0].resolved()
    kind = "words" if resolved.tokenizer == "word" else "tokens"
    words = f"{s['vocab_size']:,} {kind}, " if "vocab_size" in s else ""
    data = f"{words}length {s['length']:,}" if "length" in s else f"{s['image_size']} pixels"
    depths = sorted({int(cell.settings["layers"]) for cell in cells})
    layers = f"{depths[0]} to {depths[-1]} layers" if len(depths) > 1 else f"{depths[0]} layer{'s' * (depths[0] > 1)}"
    heads = f"{s['heads']} head{'s' * (s['heads'] > 1)}"
    length = f"{s['steps']:,} updates" if "steps" in s else f"{s['epochs']:g} epochs in batches"
    held_out = resolved.eval_examples
    evaluated = f", evaluated on {held_out:,} examples" if held_out else ""
    rates = sorted({float(cell.settings["learning_rate"]) for cell in cells})
    rate = f"rates from {rates[0]:g} to {rates[-1]:g}" if len(rates) > 1 else f"rate {rates[0]:g}"
    return (
        f"{s['data']}, {data}, {layers} of width {s['width']}, {heads}, {length} of {s['batch_size']:,}, {rate}"
        f"{evaluated}"
    )
