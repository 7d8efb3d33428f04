"""The store of cells: `ARTEFACT--LABEL--seed-N--SCALE.json`, with tables beside it; written whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from uncollapse import files

from .cell import Cell

Record = dict[str, Any]
Tables = Mapping[str, pd.DataFrame]
LIST = re.compile(r"\[\n\s+([^\[\]{}\"]*?)\n\s+\]")  # of numbers: a curve is one line, which diffs can show


@dataclass(frozen=True)
class Store:
    """A folder of cells."""

    folder: Path

    def file(self, cell: Cell) -> Path:
        """Where a cell is kept."""
        return self.folder / f"{cell.name}.json"

    def read(self, cell: Cell) -> Record | None:
        """What is kept of a cell, whether its definition has changed or not; None if there is nothing."""
        return self._read(self.file(cell))

    def current(self, cell: Cell) -> Record | None:
        """What is kept of a cell if it was trained as it is defined now."""
        record = self.read(cell)
        return record if record is not None and record["definition"] == cell.definition else None

    def definitions(self) -> set[str]:
        """The trainings that are kept."""
        records = (self._read(file) for file in self.folder.glob("*.json"))
        return {record["definition"] for record in records if record is not None}

    def same_training(self, cell: Cell) -> tuple[Record, Path] | None:
        """A cell of another artefact that trained the same network, and its file."""
        for file in sorted(self.folder.glob("*.json")):
            record = self._read(file)
            if record is not None and record.get("definition") == cell.definition and file != self.file(cell):
                return record, file
        return None

    def tables(self, cell: Cell) -> dict[str, pd.DataFrame]:
        """The tables that violins and maps draw; a cell that was taken over has those of the one it was taken from."""
        record = self.read(cell)
        return read_tables(self.folder / f"{record['tables']}.npz") if record and "tables" in record else {}

    def write(self, cell: Cell, record: Record, tables: Tables | None) -> Path:
        """Keep a cell, its tables first, so that a record never lacks them."""
        if tables:
            write_tables(self.folder / f"{cell.name}.npz", tables)
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        text = LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
        files.write(self.file(cell), text + "\n")
        return self.file(cell)

    def _read(self, file: Path) -> Record | None:
        if not file.is_file():
            return None
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{file} is damaged ({error}); remove it, and the cell is run again.") from None
        if not isinstance(found, dict) or "definition" not in found:
            raise ValueError(f"{file} is no cell; remove it, or give another folder with --cells.")
        return found


def write_tables(file: Path, tables: Tables) -> None:
    """Write tables as one compressed .npz, one array per column."""
    arrays = {
        f"{name}.{column}": table[column].to_numpy(str if table[column].dtype.kind not in "ifb" else None)
        for name, table in tables.items()
        for column in table.columns
    }
    with files.replacing(file) as new, new.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def read_tables(file: Path) -> dict[str, pd.DataFrame]:
    """What `write_tables` wrote; empty if there is no file."""
    if not file.is_file():
        return {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    with np.load(file, allow_pickle=False) as arrays:
        for key in arrays.files:
            name, _, column = key.partition(".")
            columns.setdefault(name, {})[column] = arrays[key]
    return {name: pd.DataFrame(found) for name, found in columns.items()}
