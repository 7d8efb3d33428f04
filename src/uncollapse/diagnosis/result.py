"""Diagnosis: what was measured of a model, as tables, with verdicts in words."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file, save_file

from .summary import summary
from .verdicts import Verdict, judge

FORMAT = 1  # of saved diagnoses


@dataclass
class Diagnosis:
    """The result of `uc.diagnose`.

    `layers`: a row a layer, from 1; `heads`: a row a layer and head; `histograms`: cosines of token pairs by layer and
    entropies of attention rows by head; `propagation`: rho by head and relative position; `eigenvalues` of W_QK by
    head; `missing`: what could not be measured and why; `verdicts`: what it means, in words.
    """

    layers: pd.DataFrame
    heads: pd.DataFrame
    histograms: dict[str, pd.DataFrame]
    propagation: pd.DataFrame
    eigenvalues: pd.DataFrame
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
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a folder with `diagnosis.json` and `diagnosis.safetensors`; an existing folder is refused."""
        folder = Path(path)
        if folder.exists():
            raise FileExistsError(f"{folder} exists already; give a new path.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            tensors: dict[str, torch.Tensor] = {}
            columns: dict[str, dict[str, Any]] = {}
            for name, table in self.tables.items():
                columns[name] = {}
                for column in table.columns:
                    if table[column].dtype.kind in "if":
                        tensors[f"{name}.{column}"] = torch.from_numpy(table[column].to_numpy(copy=True))
                        columns[name][column] = None
                    else:
                        columns[name][column] = [str(value) for value in table[column]]
            save_file(tensors, draft / "diagnosis.safetensors")
            about = {
                "format": FORMAT,
                "info": self.info,
                "missing": self.missing,
                "notes": self.notes,
                "not_finite": self.not_finite,
                "columns": columns,
                "verdicts": [verdict.sentence for verdict in self.verdicts],
            }
            (draft / "diagnosis.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
            os.chmod(draft, 0o755)
            os.rename(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return folder

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Diagnosis:
        """Read what `save` wrote."""
        folder = Path(path)
        if not all((folder / f"diagnosis.{kind}").is_file() for kind in ("json", "safetensors")):
            raise FileNotFoundError(f"{folder} holds no saved diagnosis (diagnosis.json and diagnosis.safetensors).")
        about = json.loads((folder / "diagnosis.json").read_text(encoding="utf-8"))
        if about.get("format") != FORMAT:
            raise ValueError(f"{folder} has format {about.get('format')}, this version reads {FORMAT}.")
        tensors = load_file(folder / "diagnosis.safetensors")
        tables = {
            name: pd.DataFrame(
                {
                    column: tensors[f"{name}.{column}"].numpy() if values is None else values
                    for column, values in columns.items()
                }
            )
            for name, columns in about["columns"].items()
        }
        return cls(
            layers=tables["layers"],
            heads=tables["heads"],
            histograms={"cosine": tables["cosine_histogram"], "entropy": tables["entropy_histogram"]},
            propagation=tables["propagation"],
            eigenvalues=tables["eigenvalues"],
            info=about["info"],
            missing=about["missing"],
            notes=about["notes"],
            not_finite=about["not_finite"],
        )

    def to_html(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write one self-contained page of charts that opens from disk and needs no network.

        An earlier page of uncollapse at `path` is replaced; any other file is refused unless `force`.
        """
        from .pages import write_page  # charts are loaded when they are drawn

        return write_page(self, path, force)

    def _repr_html_(self) -> str:
        from .pages import notebook_view

        return notebook_view(self)

    def __str__(self) -> str:
        return summary(self)

    __repr__ = __str__
