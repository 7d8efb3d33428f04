"""One measurement: the forwards of one update, read by a tap, and what they show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd
from torch import nn

from uncollapse.diagnosis.result import Diagnosis
from uncollapse.diagnosis.tap import Tap, make_tap
from uncollapse.diagnosis.training_observer import TrainingObserver
from uncollapse.models.convert import find_transformers_model
from uncollapse.models.plain import Plan

SEQUENCES = 8  # of an update whose rows are all read; of the others the largest logits, which are exact


class UpdateMeasurement:
    """The numbers of one update."""

    def __init__(self, model: nn.Module, step: int, plans: list[Plan]) -> None:
        self.model, self.step, self.plans = model, step, plans
        self.observer = TrainingObserver(type(model).__name__, SEQUENCES)
        self.processes = 1
        self._tap: Tap | None = None
        self._traces: dict[int, tuple[list[float], list[float]]] = {}
        self._tables: dict[str, pd.DataFrame] = {}  # made once: they are asked for as rows and in the diagnosis

    def open(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Attach the tap to a forward."""
        if self._tap is None:
            self._tap = make_tap(self.model, self.observer, self.plans)
        self._tap.open(module, args, kwargs)

    def close(self) -> None:
        """Take it off."""
        if self._tap is not None:
            self._tap.close()

    def finish(
        self,
        exchange: Callable[[int, TrainingObserver], list[TrainingObserver]],
        traces: dict[int, tuple[list[float], list[float]]],
    ) -> None:
        """After the last forward: put together what several processes measured; `traces` of W_QK come by layer."""
        self._traces = traces
        if self._tap is not None:
            self._tap.finish()
            self._read_model()
        self._tap = None
        given = exchange(self.step, self.observer)
        self.processes = len(given)
        first, *others = given
        for other in others:
            first.merge(other)
        self.observer = first

    def _read_model(self) -> None:
        inner = find_transformers_model(self.model)
        if inner is not None:
            from uncollapse.diagnosis.huggingface import measure_settings

            measure_settings(inner, self.observer)

    def heads(self) -> pd.DataFrame:
        """The rows of `Diagnosis.heads`, trace and scale of W_QK, and how many sequences were read in full."""
        if "heads" not in self._tables:
            self._tables["heads"] = self._head_table()
        return self._tables["heads"].copy()

    def _head_table(self) -> pd.DataFrame:
        table = self.observer.head_table()
        table["sequences"] = table["layer"].map({n: s.sequences for n, s in self.observer.attention_statistics.items()})
        unknown = (math.nan, math.nan)
        by_head = {
            (layer, head): pair
            for layer, (trace, scale) in self._traces.items()
            for head, pair in enumerate(zip(trace, scale, strict=True), start=1)
        }
        if by_head and len(table):
            pairs = [by_head.get(place, unknown) for place in zip(table["layer"], table["head"], strict=True)]
            table["qk_trace"], table["qk_scale"] = ([pair[i] for pair in pairs] for i in (0, 1))
        return table

    def layers(self) -> pd.DataFrame:
        """The rows of `Diagnosis.layers`, and whether a layer has NaN or infinite values."""
        if "layers" not in self._tables:
            self._tables["layers"] = self._layer_table()
        return self._tables["layers"].copy()

    def _layer_table(self) -> pd.DataFrame:
        table = self.observer.layer_table(self.heads())
        if "layer" not in table:
            return pd.DataFrame(columns=["layer"])
        table["not_finite"] = table["layer"].isin(self.observer.broken_layers())
        table["sequences"] = table["layer"].map({n: s.sequences for n, s in self.observer.token_statistics.items()})
        table["batch"] = table["layer"].map(self.observer.seen)
        table["processes"] = self.processes
        return table

    def diagnosis(self) -> Diagnosis:
        """The measurement as `diagnose` would give it; a few sequences of one batch do not say how sure it is."""
        observer, whole = self.observer, self.observer.finish()
        broken = observer.broken_layers()
        return Diagnosis(
            layers=self.layers(),
            heads=self.heads(),
            histograms=whole.histograms,
            propagation=whole.propagation,
            eigenvalues=whole.eigenvalues,
            info={
                "model": observer.name,
                "sample": f"the training batch of update {self.step:,}",
                "sequences": max((s.sequences for s in observer.token_statistics.values()), default=0),
                "tokens": observer.token_count,
                "stacks": observer.stacks,
                "settings": observer.settings,
            },
            missing=dict(observer.missing),
            notes=list(observer.notes),
            not_finite=min(broken) if broken else None,
        )
