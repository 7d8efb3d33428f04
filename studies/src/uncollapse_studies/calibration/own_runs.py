"""The networks that we trained ourselves, as cases: healthy ones, and skip-free ones that did not learn.

Their store keeps less than a diagnosis. What is left after centring is known in the (1, inf) norm instead of
Frobenius's; of gaps nothing is known, but without a head that uses next to nothing of its entropy there is no entropy
collapse.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from uncollapse.diagnosis import Diagnosis
from uncollapse.diagnosis.attention_statistics import ENTROPY_WIDTH
from uncollapse.metrics.similarity import ALIGNED

from .. import locations
from ..cells.store import read_tables
from .cases import PARTS, Case

LEARNED, FAILED = 0.95, 0.99  # held-out loss as a share of that of guessing: below the first, and above the second
RANK = "rank collapse"
SEARCHED = "-readings-"  # in the ids of artefacts that seek a rate with seed 0, and give the best one more seeds
CLASSES, PATCH_SIZE = 10, 4  # of CIFAR-10, and in pixels where a cell has none of its own


def own_runs(folder: Path | None = None) -> list[Case]:
    """One case a training. Which half it is in hangs on its name alone, so that a new run moves no other."""
    healthy, failed, known = list[dict[str, Any]](), list[dict[str, Any]](), set[str]()
    files = sorted((folder or locations.cells()).glob("*.json"))
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    chosen = {record["label"] for record in records if record["seed"]}
    for record in records:
        if record["definition"] in known or "tables" not in record or record["status"] != "finished":
            continue
        if SEARCHED in record["artefact"] and record["label"] not in chosen:
            continue  # a search tries rates that are too high, and nothing says that such a network is healthy
        known.add(record["definition"])
        share = record["numbers"]["eval_loss"] / _guessing(record)
        if share < LEARNED:
            healthy.append(record)
        elif share > FAILED and not record["settings"]["residual"]:
            failed.append(record)  # with alpha = 1 nothing is learned either: attention is left out, and not collapsed
    return [*_cases(healthy, "trained", "", folder), *_cases(failed, "without skips, did not learn", RANK, folder)]


def _cases(records: list[dict[str, Any]], case: str, fault: str, folder: Path | None) -> list[Case]:
    return [
        Case(_name(record), "own run", _part(record), case, fault, _report(record, folder or locations.cells()))
        for record in records
    ]


def _part(record: dict[str, Any]) -> str:
    """The seeds of a method are in one half."""
    return PARTS[zlib.crc32(f"{record['artefact']}, {record['label']}".encode()) % len(PARTS)]


def _guessing(record: dict[str, Any]) -> float:
    return math.log(record["settings"].get("vocab_size", CLASSES))


def _tokens(record: dict[str, Any]) -> int:
    """The length of a sequence: of an image, a class token and its patches."""
    settings = record["settings"]
    if "length" in settings:
        return int(settings["length"])
    side = settings["image_size"] // record["keys"].get("patch_size", PATCH_SIZE)
    return int(side * side + 1)


def _name(record: dict[str, Any]) -> str:
    return f"{record['artefact']}, {record['label']}, seed {record['seed']}"


def _report(record: dict[str, Any], folder: Path) -> Diagnosis:
    tables = read_tables(folder / f"{record['tables']}.npz")
    centred = tables["cosine"][tables["cosine"]["kind"] == "centred"]
    layers = tables["layers"].assign(
        residual_frobenius=tables["layers"]["residual_ratio"],
        cosine_centred=[_mean(centred[centred["layer"] == n]) for n in tables["layers"]["layer"]],
        cosine_centred_aligned=[_aligned(centred[centred["layer"] == n]) for n in tables["layers"]["layer"]],
    )
    unused = pd.DataFrame()
    heads = _heads(tables["entropy"], _tokens(record))
    return Diagnosis(layers, heads, {"cosine": unused, "entropy": unused}, unused, unused)


def _mean(histogram: pd.DataFrame) -> float:
    return float(np.average(histogram["low"], weights=histogram["count"]))


def _aligned(histogram: pd.DataFrame) -> float:
    above = histogram["low"] > ALIGNED - 1e-6  # the lower edge of a bin
    return float(histogram.loc[above, "count"].sum() / histogram["count"].sum())


def _heads(entropies: pd.DataFrame, keys: int) -> pd.DataFrame:
    """Entropies of heads over that of all keys: a lower bound of the share, as causal rows see fewer."""
    middle = entropies.assign(sum=(entropies["low"] + ENTROPY_WIDTH / 2) * entropies["count"])
    sums = middle.groupby(["layer", "head"], as_index=False)[["sum", "count"]].sum()
    return sums[["layer", "head"]].assign(entropy_normalised=sums["sum"] / sums["count"] / math.log(keys))
