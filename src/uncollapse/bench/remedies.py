"""What each remedy costs: a training step of GPT-2 with it, against one without, in turn."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import nn

from uncollapse.remedies import apply

from .measurement import Measurement
from .models import WorkloadPair, WorkloadSizes, gpt2, measure_pair
from .timing import Workload

REMEDIES: dict[str, tuple[str, dict[str, Any], float]] = {  # label -> name, settings, bar
    "qk_clip": ("qk_clip", {}, 1.05),
    "qk_norm": ("qk_norm", {}, 1.05),
    "sigma_reparam": ("sigma_reparam", {}, 1.05),
    "qk_rate": ("qk_rate", {}, 1.05),
    "soft_cap": ("soft_cap", {}, 1.15),
    "sink": ("sink", {}, 1.15),
    "output_gate": ("output_gate", {}, 1.05),
    "output_gate(per=element)": ("output_gate", {"per": "element"}, 1.05),
    "value_mixing": ("value_mixing", {"own": -0.6, "first": 0.6}, 1.05),
}


def measure_remedies(size: WorkloadSizes, rounds: int, budget: float) -> Iterator[Measurement]:
    """One measurement for each remedy."""
    for label, (name, settings, _) in REMEDIES.items():
        shape = f"{size.layers} layers, B1 T{size.tokens}"
        row = Measurement("model", f"GPT-2, {label}", "stock", shape, size.tokens, True, "training step")

        pair = WorkloadPair(row, partial(steps, name=name, settings=settings), 124e6)
        yield measure_pair(pair, size, rounds, budget)


def remedies_table(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each remedy: the ratio of its step to the stock model's, and its bar."""
    bars = [bar for _, _, bar in REMEDIES.values()]
    return pd.DataFrame(
        {
            "remedy": list(REMEDIES),
            "shape": table["shape"],
            "ratio": table["ratio"],
            "median ratio": table["median_ratio"],
            "bar": bars,
            "note": table["note"],
        }
    )


def steps(size: WorkloadSizes, name: str, settings: dict[str, Any]) -> tuple[Workload, Workload]:
    """A training step with the remedy, and one without."""
    stock = gpt2(size).train()
    changed = copy.deepcopy(stock)
    ids = torch.randint(0, size.vocabulary, (1, size.tokens))

    def step(model: nn.Module, remedy: str | None) -> Workload:
        early = remedy is not None and name not in ("qk_clip", "qk_rate")
        if early:
            apply(model, name, **settings)
        optimizer = torch.optim.AdamW(model.parameters())
        if remedy is not None and not early:
            apply(model, name, optimizer=optimizer, **settings)

        def run() -> None:
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()

        return run

    return step(changed, name), step(stock, None)
