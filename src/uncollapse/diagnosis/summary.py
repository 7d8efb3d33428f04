"""A diagnosis as text: what print(report) shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from .result import Diagnosis

LAYER_COLUMNS = {
    "layer": "layer",
    "name": "name",
    "residual_ratio": "residual ratio",
    "effective_rank": "rank",
    "cosine_mean": "cosine",
    "cosine_aligned": "aligned",
    "cosine_centred_aligned": "aligned, centred",
    "entropy_normalised": "entropy",
    "entropy_min": "lowest (nats)",
    "sink": "sink",
    "gap_max": "max gap",
}


def summary(diagnosis: Diagnosis) -> str:
    """The verdicts, one row per layer, and what is missing."""
    info = diagnosis.info
    lines = [
        f"Diagnosis of {info.get('model', 'a model')}: {len(diagnosis.layers)} layers, "
        f"{info.get('sequences', 0)} sequences, {info.get('tokens', 0)} tokens ({info.get('sample', 'unknown data')})",
        "",
        *(f"- {verdict}" for verdict in diagnosis.verdicts),
        "",
        layer_table(diagnosis.layers).to_string(index=False),
    ]
    lines += [f"\nnot measured: {what}, because {why}" for what, why in diagnosis.missing.items()]
    lines += [f"\nnote: {note}" for note in diagnosis.notes]
    return "\n".join(lines)


def layer_table(layers: pd.DataFrame) -> pd.DataFrame:
    """The columns people look at first, rounded."""
    columns = {name: title for name, title in LAYER_COLUMNS.items() if name in layers}
    table = layers[list(columns)].rename(columns=columns)
    return table.apply(lambda column: column if column.name in ("layer", "name") else column.map(_number))


def _number(value: float) -> str:
    """Three digits, tiny values in powers of ten."""
    return f"{value:.3g}" if abs(value) >= 0.001 or value == 0 else f"{value:.0e}"
