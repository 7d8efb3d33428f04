"""The file that a watch wrote, read again."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from .logs import FORMAT

TABLES = ("heads", "layers", "optimizer", "updates")


@dataclass(frozen=True)
class WatchedRun:
    """The tables of a run: those of `Watch`, from a file of JSON lines."""

    about: dict[str, Any]
    heads: pd.DataFrame
    layers: pd.DataFrame
    optimizer: pd.DataFrame
    updates: pd.DataFrame
    warnings: pd.DataFrame
    cut: int = 0  # lines that could not be read


def read(path: Path) -> WatchedRun:
    """Read a file; a run that was resumed counts from there on by what it wrote last."""
    about, lines, cut = _lines(path)
    tables = {name: _joined([(line["step"], line.get(name)) for line in lines], name) for name in TABLES}
    told = [{"step": line["step"], **news} for line in lines for news in line.get("warnings", ())]
    columns = ["step", "kind", "layers", "heads", "sentence"]
    return WatchedRun(about, **tables, warnings=pd.DataFrame(told, columns=columns), cut=cut)


def _lines(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    about: dict[str, Any] = {}
    kept: dict[int, dict[str, Any]] = {}
    cut = 0
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            cut += bool(text.strip())
            continue
        if not isinstance(line, dict) or not ("watch" in line or "step" in line):
            raise ValueError(f"{path} is no file that uncollapse.watch wrote.")
        if "watch" in line:
            if line["watch"] != FORMAT:
                raise ValueError(f"{path} has format {line['watch']}; this version of uncollapse reads {FORMAT}.")
            about = line
            continue
        kept = {step: other for step, other in kept.items() if step < line["step"]} | {line["step"]: line}
    if not kept:
        raise ValueError(f"{path} holds no measurement of uncollapse.watch.")
    return about, list(kept.values()), cut


def _joined(parts: list[tuple[int, dict[str, list[Any]] | None]], name: str) -> pd.DataFrame:
    tables = []
    for step, columns in parts:
        if columns and any(columns.values()):
            known = {key: [math.nan if v is None else v for v in values] for key, values in columns.items()}
            table = pd.DataFrame(known)
            tables.append(table if name == "updates" else table.assign(step=step))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
