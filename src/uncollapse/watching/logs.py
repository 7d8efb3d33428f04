"""Where a watch writes its numbers: a callable, a TensorBoard writer, or a file of JSON lines."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from .course import News

LAYER_METRICS = (
    "residual_ratio",
    "cosine_mean",
    "cosine_aligned",
    "cosine_centred_aligned",
    "entropy_normalised",
    "entropy_min",
    "sink",
    "logit_max",
    "gap_mean",
    "gap_max",
)
HEAD_METRICS = ("entropy_normalised", "gap_mean", "logit_max", "qk_trace", "qk_scale")
OPTIMIZER_METRICS = ("update_ratio_query", "update_ratio_key", "spectral_entropy", "update_alignment")
FORMAT = 1  # of the lines in a file

MeasuredTables = Mapping[str, pd.DataFrame]


class ScalarWriter(Protocol):
    """What TensorBoard's SummaryWriter has, and others like it."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Write one number."""


Log = Callable[[dict[str, float], int], Any] | ScalarWriter | str | os.PathLike[str]


def scalars(tables: MeasuredTables, prefix: str = "watch") -> dict[str, float]:
    """The numbers of a measurement by the names under which they are logged."""
    numbers: dict[str, float] = {}
    for table, metrics in (("layers", LAYER_METRICS), ("heads", HEAD_METRICS), ("optimizer", OPTIMIZER_METRICS)):
        rows = tables.get(table, pd.DataFrame())
        for row in rows.to_dict("records"):
            head = f"_head_{row['head']:02.0f}" if table == "heads" else ""
            for name in metrics:
                if name in row and not pd.isna(row["layer"]):
                    numbers[f"{prefix}/layer_{row['layer']:02.0f}{head}/{name}"] = float(row[name])
    optimizer = tables.get("optimizer", pd.DataFrame())
    if len(optimizer) and "gradient_norm" in optimizer:
        numbers[f"{prefix}/gradient_norm"] = float(optimizer["gradient_norm"].iloc[0])
    return numbers


class Logger:
    """Writes measurements to a log; what the log raises is told once, and the training goes on."""

    def __init__(self, log: Log | None, about: Mapping[str, Any]) -> None:
        self._failed = False
        self._write: Callable[[int, MeasuredTables, list[News]], None] | None = None
        if log is None:
            return
        if isinstance(log, str | os.PathLike):
            self._write = JsonLines(Path(log), about).write
        elif hasattr(log, "add_scalar"):
            self._write = _to_writer(log)
        elif callable(log):
            self._write = _to_callable(log)
        else:
            raise ValueError(
                f"log must be a callable that takes a dict and a step, a TensorBoard writer, or a path, got "
                f"{type(log).__name__}."
            )

    def write(self, step: int, tables: MeasuredTables, news: list[News]) -> None:
        """Write a measurement."""
        if self._write is None:
            return
        try:
            self._write(step, tables, news)
        except Exception as error:
            if not self._failed:
                reason = " ".join(str(error).split()) or type(error).__name__
                warnings.warn(
                    f"the log of uncollapse.watch failed at step {step} ({reason}); the training and the tables go on, "
                    "and each measurement is offered to the log again.",
                    stacklevel=2,
                )
            self._failed = True


def _to_callable(log: Callable[[dict[str, float], int], Any]) -> Callable[[int, MeasuredTables, list[News]], None]:
    def write(step: int, tables: MeasuredTables, news: list[News]) -> None:
        log(scalars(tables), step)

    return write


def _to_writer(writer: ScalarWriter) -> Callable[[int, MeasuredTables, list[News]], None]:
    def write(step: int, tables: MeasuredTables, news: list[News]) -> None:
        for name, value in scalars(tables).items():
            writer.add_scalar(name, value, step)

    return write


class JsonLines:
    """A file with one line a measurement; a run that goes on appends to it, also behind a line that was cut off."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        if path.is_dir():
            raise ValueError(f"log is the folder {path}; give the name of a file, such as {path / 'watch.jsonl'}.")
        if not path.parent.is_dir():
            raise ValueError(f"log is {path}, and there is no folder {path.parent}; make it first.")
        if path.exists() and path.stat().st_size and not _is_log(path):
            raise ValueError(f"{path} is no file that uncollapse.watch wrote; give log another name.")
        self.path, self.about = path, dict(about)

    def write(self, step: int, tables: MeasuredTables, news: list[News]) -> None:
        """Append a measurement, in one piece."""
        lines = [{"watch": FORMAT, **self.about}] if self.about else []
        line: dict[str, Any] = {"step": step}
        for name, table in tables.items():
            line[name] = {column: [_plain(value) for value in table[column].tolist()] for column in table.columns}
        line["warnings"] = [
            {"kind": n.kind, "layers": n.layers, "heads": n.heads, "sentence": n.sentence} for n in news
        ]
        text = "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in [*lines, line])
        with self.path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                text = text if file.read(1) == b"\n" else f"\n{text}"
            file.write(text.encode("utf-8"))
        self.about = {}  # the first line of a run says what it is, the others do not


def _is_log(path: Path) -> bool:
    with path.open("rb") as file:
        return file.readline(1 << 20).startswith(b'{"watch": ')


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
