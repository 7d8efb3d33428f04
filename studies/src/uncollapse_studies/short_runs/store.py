"""Records of short runs: one line of JSON each, in one compressed file that is whole at every moment."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from uncollapse import files

RunRecord = dict[str, Any]
FILE = "runs.jsonl.gz"
DIGITS = 4


class RunStore:
    """A folder with the records of runs by name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     RunStore(Path(folder)).add("a", {"loss": [2.0, math.nan]})
    ...     RunStore(Path(folder)).records["a"]
    {'loss': [2.0, None]}
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self.records: dict[str, RunRecord] = {}
        if self.file.is_file():
            lines = gzip.decompress(self.file.read_bytes()).decode().splitlines()
            self.records = dict(map(json.loads, lines))

    def current(self, name: str, definition: str) -> RunRecord | None:
        """The record of a run, if it was made as it is defined now."""
        record = self.records.get(name)
        return record if record is not None and record["definition"] == definition else None

    def add(self, name: str, record: RunRecord) -> None:
        """Keep a record."""
        self.records[name] = _plain(record)
        lines = [json.dumps(pair, separators=(",", ":"), allow_nan=False) for pair in sorted(self.records.items())]
        files.write(self.file, gzip.compress("\n".join(lines).encode(), mtime=0))


def definition_of(*parts: Any) -> str:
    """What tells one definition of a run from another: a hash of the dataclasses that define it."""
    text = json.dumps([part if isinstance(part, str) else asdict(part) for part in parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """For JSON: numbers with four digits, those that are not finite as None, infinity as a text."""
    if isinstance(value, dict):
        return {key: _plain(own) for key, own in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(own) for own in value]
    if isinstance(value, float | np.floating):
        return "inf" if value == math.inf else float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def numbers_of(values: Iterable[Any]) -> np.ndarray:
    """A list of a record as numbers."""
    return np.array([math.nan if value is None else float(value) for value in values])
