"""Diagnosis: what was measured of a model, as tables, and the verdicts drawn from it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from uncollapse import files
from uncollapse.data.arrays import read_arrays
from uncollapse.extras import MissingExtraError, require

from .summary import summary
from .verdicts import Verdict, judge

FORMAT = 2  # of saved diagnoses
JSON_FILE, ARRAYS_FILE = "diagnosis.json", "diagnosis.npz"
DIGEST = "sha256"  # of the JSON file, among the arrays


@dataclass
class Diagnosis:
    """The result of `uc.diagnose`.

    `layers`: one row per layer, counted from 1; `heads`: one row per head of each layer; `histograms`: cosines of token
    pairs by layer and entropies of attention rows by head; `propagation`: rho by head and relative position;
    `eigenvalues` of W_QK by head; `layer_groups`, `head_groups`: the sums of 16 groups of sequences, from which the
    verdicts say how sure they are; `missing`: what could not be measured and why; `verdicts`: what the numbers mean.
    """

    layers: pd.DataFrame
    heads: pd.DataFrame
    histograms: dict[str, pd.DataFrame]
    propagation: pd.DataFrame
    eigenvalues: pd.DataFrame
    layer_groups: pd.DataFrame = field(default_factory=pd.DataFrame)  # empty in what version 0.1 saved
    head_groups: pd.DataFrame = field(default_factory=pd.DataFrame)
    info: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    not_finite: int | None = None  # the first layer with NaN or inf

    @property
    def verdicts(self) -> list[Verdict]:
        """What the numbers mean; see `verdicts.py` for the thresholds."""
        return judge(self)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by name."""
        return {
            "layers": self.layers,
            "heads": self.heads,
            "cosine_histogram": self.histograms["cosine"],
            "entropy_histogram": self.histograms["entropy"],
            "propagation": self.propagation,
            "eigenvalues": self.eigenvalues,
            "layer_groups": self.layer_groups,
            "head_groups": self.head_groups,
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a folder with `diagnosis.json` and `diagnosis.npz`; an existing folder is refused."""
        arrays: dict[str, Any] = {}
        columns: dict[str, dict[str, list[str] | None]] = {}  # text, or None for what is in the arrays
        for name, table in self.tables.items():
            columns[name] = {}
            for column in table.columns:
                numeric = table[column].dtype.kind in "biuf"
                columns[name][column] = None if numeric else [str(value) for value in table[column]]
                if numeric:
                    arrays[f"{name}.{column}"] = table[column].to_numpy()
        about = {
            "format": FORMAT,
            "info": self.info,
            "missing": self.missing,
            "notes": self.notes,
            "not_finite": self.not_finite,
            "columns": columns,
            "verdicts": [verdict.sentence for verdict in self.verdicts],
        }
        text = json.dumps(about, indent=1).encode("utf-8")
        arrays[DIGEST] = np.frombuffer(hashlib.sha256(text).digest(), np.uint8)  # numpy checks its own files
        with files.new_folder(Path(path)) as folder:
            np.savez_compressed(folder / ARRAYS_FILE, **arrays)
            (folder / JSON_FILE).write_bytes(text)
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Diagnosis:
        """Read what `save` wrote, in this version or an earlier one."""
        folder = Path(path)
        file = folder / JSON_FILE
        if not file.is_file():
            raise FileNotFoundError(f"{folder} holds no saved diagnosis: there is no {JSON_FILE} in it.")
        about = _read_json(file)
        arrays_file, arrays = _read_arrays(folder, about.get("format"))
        digest = arrays.get(DIGEST) if about["format"] == FORMAT else None
        if digest is not None and digest.tobytes() != hashlib.sha256(file.read_bytes()).digest():
            raise ValueError(_damaged(file, "it has changed since it was written"))
        try:
            tables = _tables(about["columns"], arrays, arrays_file)
            return cls(
                layers=tables["layers"],
                heads=tables["heads"],
                histograms={"cosine": tables["cosine_histogram"], "entropy": tables["entropy_histogram"]},
                propagation=tables["propagation"],
                eigenvalues=tables["eigenvalues"],
                **{name: tables[name] for name in ("layer_groups", "head_groups") if name in tables},
                **{name: about[name] for name in ("info", "missing", "notes", "not_finite")},
            )
        except (KeyError, AttributeError) as error:
            raise ValueError(_damaged(file, f"it lacks {error}")) from None

    def to_html(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write one self-contained page of charts that opens from disk and needs no network.

        An earlier page of uncollapse at `path` is replaced; any other file is refused unless `force`.
        """
        from .pages import write_page  # charts are loaded when they are drawn

        return write_page(self, path, force)

    def _repr_html_(self) -> str | None:
        try:
            require("altair", "vl_convert")
        except MissingExtraError:
            return None  # a notebook then shows the text
        from .pages import notebook_view

        return notebook_view(self)

    def __str__(self) -> str:
        return summary(self)

    __repr__ = __str__


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return files.json_object(file.read_text(encoding="utf-8"), "it")
    except ValueError as error:  # also what is not UTF-8
        raise ValueError(_damaged(file, str(error).rstrip("."))) from None


def _read_arrays(folder: Path, version: object) -> tuple[Path, dict[str, np.ndarray]]:
    """The numeric columns, by "table.column", and the file they are in."""
    if version not in _READERS:
        known = " and ".join(map(str, _READERS))
        raise ValueError(f"{folder} has format {version}; this version of uncollapse reads the formats {known}.")
    name, read = _READERS[version]
    file = folder / name
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no saved diagnosis: {JSON_FILE} is there, {name} is missing.")
    return file, read(file)


def _read_npz(file: Path) -> dict[str, np.ndarray]:
    try:
        return read_arrays(file)
    except ValueError as error:
        raise ValueError(_damaged(file, str(error.__cause__))) from None


def _read_safetensors(file: Path) -> dict[str, np.ndarray]:
    require("safetensors")
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(_damaged(file, str(error))) from None


_READERS: dict[
    object, tuple[str, Callable[[Path], dict[str, np.ndarray]]]
] = {  # by format: its file, and how to read it
    1: ("diagnosis.safetensors", _read_safetensors),
    FORMAT: (ARRAYS_FILE, _read_npz),
}


def _tables(
    columns: dict[str, dict[str, list[str] | None]], arrays: dict[str, np.ndarray], file: Path
) -> dict[str, pd.DataFrame]:
    missing = [
        key
        for name, table in columns.items()
        for c in table
        if table[c] is None and (key := f"{name}.{c}") not in arrays
    ]
    if missing:
        raise ValueError(_damaged(file, f"it lacks {missing[0]}"))
    return {
        name: pd.DataFrame(
            {column: arrays[f"{name}.{column}"] if values is None else values for column, values in table.items()}
        )
        for name, table in columns.items()
    }


def _damaged(file: Path, reason: str) -> str:
    return f"{file} is damaged ({reason}); diagnose the model again."
