"""The tables of a watch, as they grow."""

from __future__ import annotations

import pandas as pd

from uncollapse.diagnosis.attention_statistics import AttentionStatistics

TABLES = ("heads", "layers", "optimizer")


class History:
    """One table a name, made of what each measurement added."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}

    def add(self, step: int, **tables: pd.DataFrame) -> None:
        """Add the tables of a measurement; each gets a column step in front."""
        for name, table in tables.items():
            table = table.copy()
            table.insert(0, "step", step)
            self._parts[name].append(table)

    def table(self, name: str) -> pd.DataFrame:
        """All measurements."""
        parts = self._parts[name]
        if len(parts) > 1:
            self._parts[name] = parts = [_joined(parts)]
        return parts[0].copy() if parts else pd.DataFrame(columns=_columns(name))

    def last(self, name: str, measurements: int) -> pd.DataFrame:
        """The last measurements."""
        table = _joined(self._parts[name][-measurements:]) if self._parts[name] else self.table(name)
        steps = table["step"].unique()[-measurements:]
        return table[table["step"].isin(steps)]


def _columns(name: str) -> list[str]:
    """What a table has for sure, also before the first measurement."""
    return ["step", "layer", *(["head", *AttentionStatistics(1).columns()] if name == "heads" else [])]


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    filled = [part for part in parts if len(part)] or parts[:1]
    return pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]
