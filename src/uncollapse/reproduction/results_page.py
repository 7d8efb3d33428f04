"""docs/results.md: every table and figure, ours beside theirs, written from the files under results/ alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from .artefact import Artefact, Gathered
from .artefacts import ARTEFACTS
from .cells.cell import Scale
from .cells.store import Store
from .figure import FIGURES, Figure, Result

PAGE = Path("docs/results.md")
PICTURES = Path("results/figures")
SCALE: Scale = "laptop"
INTRODUCTION = """\
# Results

What the two papers report, and what we find. This page is written from the files under `results/` by `uncollapse
reproduce results`; no number is typed by hand.

- *hopfield*: Masumura and Taki, "On the Role of Hidden States of Modern Hopfield Network in Transformer" (2025).
  *localization*: Bao, Hataya and Karakida, "Self-attention Networks Localize When QK-eigenspectrum Concentrates"
  (2024).
- Trained networks are small, and training is short: minutes on two cores. The papers' own numbers, of one run each,
  stand beside ours but are of other sizes and data: levels cannot be compared, differences between methods can.
- Every method has the same budget and rate. None was tuned. Seeds are 0, 1, 2.
- A difference counts with three seeds if bootstrap intervals do not overlap; with one seed, from 2 points of
  accuracy or 2 % of another number on.
- Verdicts: *reproduced*; *same trend* (the direction is the paper's, at a smaller scale); *not seen*; *cannot be
  tested at this scale*; *pending* until the cells that decide are in.
- A held-out loss counts as still falling if it fell by more than 1 % from the latest evaluation at or before 80 %
  of the updates to the last one. Rates decay to almost 0 in the first paper's recipes, which flattens the end.
"""


def results_text(root: Path) -> str:
    """The whole page."""
    sections = [_figure(root, figure) for figure in FIGURES.values()]
    artefacts = [_artefact(artefact, gathered, result) for artefact, gathered, result in drawn(root)]
    overview = _overview(root)
    return "\n".join([INTRODUCTION, overview, *(text for text in (*sections, *artefacts) if text)]).rstrip() + "\n"


def drawn(root: Path) -> Iterator[tuple[Artefact, Gathered, Result | None]]:
    """Each artefact, its cells, and what is made of them; None while no cell is in."""
    store = Store(root / "results/cells")
    for artefact in ARTEFACTS.values():
        gathered = Gathered(artefact, artefact.all_cells(SCALE), store)
        yield artefact, gathered, artefact.result(gathered) if gathered.records else None


def _overview(root: Path) -> str:
    rows = []
    for figure in FIGURES.values():
        record = _record(root, figure)
        if record is not None:
            rows.append((_link(figure.id), figure.title, record.get("verdict") or "computed, no training", ""))
    for artefact, gathered, result in drawn(root):
        verdict = so_far(gathered, result)
        count = f"{len(gathered.records)} of {len(gathered.cells)}"
        rows.append((_link(artefact.id), artefact.title, verdict, count))
    return "## All at a glance\n\n" + markdown(pd.DataFrame(rows, columns=["id", "what", "verdict", "cells in"]))


def so_far(gathered: Gathered, result: Result | None) -> str:
    """The verdict, marked as long as cells are missing."""
    if result is None or result.verdict == "pending":
        return "pending"
    return result.verdict + ("" if len(gathered.records) == len(gathered.cells) else ", so far")


def _link(id: str) -> str:
    return f"[{id}](#{id})"


def _record(root: Path, figure: Figure) -> dict[str, Any] | None:
    file = root / "results" / figure.id / f"{figure.id}.json"
    found: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return found


def _figure(root: Path, figure: Figure) -> str:
    """A figure without training, if its results are kept."""
    record = _record(root, figure)
    if record is None:
        return ""
    main = pd.DataFrame(record["main"]["data"], columns=record["main"]["columns"])
    picture = f"results/{figure.id}/{figure.id}.png"
    shown = picture if (root / picture).is_file() else None
    return _section(figure.id, figure.title, record.get("verdict", ""), record["sentences"], main, shown)


def _artefact(artefact: Artefact, gathered: Gathered, result: Result | None) -> str:
    if result is None:
        sentence = f"Pending: 0 of {len(gathered.cells)} cells are in."
        return f"## {artefact.id}\n\n{artefact.title}. {sentence}\n"
    picture = str(PICTURES / f"{artefact.id}.png")
    return _section(artefact.id, artefact.title, so_far(gathered, result), result.sentences, result.summary, picture)


def _section(id: str, title: str, verdict: str, sentences: Any, main: pd.DataFrame, picture: str | None) -> str:
    lines = [f"## {id}", "", f"{title}. {f'**{verdict[0].upper()}{verdict[1:]}.**' if verdict else ''}".rstrip(), ""]
    lines += [f"- {sentence}" for sentence in sentences]
    if picture is not None:
        lines += ["", f"![{title}](../{picture})"]
    return "\n".join([*lines, "", markdown(main)])


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown; bars in a cell are escaped."""

    def line(cells: Any) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rows = [line(table.columns), line(["---"] * len(table.columns)), *map(line, table.itertuples(index=False))]
    return "\n".join(rows) + "\n"
