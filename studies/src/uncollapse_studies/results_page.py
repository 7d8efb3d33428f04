"""docs/results.md: every table and figure, ours beside theirs, written from the files under studies/results/ alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from uncollapse.statistics import CONFIDENCE

from .artefact import NO_CLAIM, PENDING, Artefact, ArtefactCells
from .artefacts import ARTEFACTS
from .cells.cell import Budget
from .cells.measured import CHANGE, LATE
from .cells.store import Store
from .figure import FIGURES, Figure, Result
from .study import Study
from .trained import SMALLEST, SMALLEST_SHARE, legend

PAGE = Path("docs/results.md")
PICTURES = Path("studies/results/figures")
LAPTOP: Budget = "laptop"
INTRODUCTION = f"""\
# Results

What the two papers report, and what we find. This page is written from the files under `studies/results/` by
`uncollapse reproduce results`; no number is typed by hand.

- *hopfield*: Masumura and Taki, "On the Role of Hidden States of Modern Hopfield Network in Transformer" (2025).
  *localization*: Bao, Hataya and Karakida, "Self-attention Networks Localize When QK-eigenspectrum Concentrates"
  (2024).
- Trained networks are small, and training is short: minutes on two cores. The papers' own numbers, of one run each,
  stand beside ours but are of other sizes and data: the direction of a difference can be compared, its size cannot.
- Every method has the same budget and, but in *hopfield-readings*, the same rate, which was tuned for none; there each
  has the best of its own. Seeds are 0, 1, ..., as many as the tables say.
- ± is the standard deviation over seeds. A difference stands with its {CONFIDENCE:.0%} interval over seeds in brackets
  (Welch's t-test), and is called higher, lower, better or worse only if that excludes 0. Where a table compares several
  methods with one, Holm's correction widens the intervals, so that all verdicts of the table together err with a
  probability of {1 - CONFIDENCE:.0%} at most. An effect smaller than half the width of an interval could not have been
  seen. One seed has no interval and decides nothing.
- Perplexity is over the model's own tokens.
- Verdicts: *reproduced*; *same trend* (the direction is the paper's, at a smaller scale); *not seen* (a difference as
  claimed that counts is ruled out, which is {SMALLEST["accuracy"]:g} points of accuracy or {SMALLEST_SHARE:.0%} of
  another number; or the difference goes the other way); *undecided* (the interval allows either, or there is one seed
  only); *cannot be tested at this scale* (what should change is not there); *pending* until the cells that decide are
  finished; *not in the paper* for what we add.
- A held-out loss counts as still falling if it fell by more than {CHANGE:.0%} from the latest evaluation at or before
  {LATE:.0%} of the updates to the last one, and as rising likewise. Rates decay to almost 0 in the first paper's
  recipes, which flattens the end.
"""
NOT_MADE = """\
## Not made here

- Appendix Figures 6 to 8 and 10 to 12 (cosines in ViT-S, -B and -L) and 15 to 20 (entropies there): networks of that
  size do not train on two cores. Figure 4 is of GPT-2 medium; ours is smaller than GPT-2 small.
- Appendix Figure 9 (CIFAR-100), and α = 0.7 beside 0.5 in Figures 5 to 12: left out for time.
- Figures 13 to 20 have one violin per head; ours pool the heads of a layer.
- The main text's tables of LLaMA, of GPT-2 medium, of ViT-S, -B and -L, of ImageNet-1k and of CIFAR-100, and the probes
  of Food101, Stanford Dogs and Stanford Cars. There are [recipes](training.md) for the networks.
"""


def results_text(root: Path) -> str:
    """The whole page."""
    found = list(drawn(root))
    sections = [_figure(root, figure) for figure in FIGURES.values()]
    artefacts = [section(artefact, found_cells, result) for artefact, found_cells, result in found]
    overview = _overview(root, found)
    parts = [INTRODUCTION, overview, *(text for text in (*sections, *artefacts) if text), NOT_MADE]
    return "\n".join(parts).rstrip() + "\n"


def drawn(root: Path) -> Iterator[tuple[Artefact, ArtefactCells, Result | None]]:
    """Each artefact, its cells, and what is made of them; None while no cell is trained."""
    store = Store(root / "studies/results/cells")
    for artefact in ARTEFACTS.values():
        found_cells = ArtefactCells(artefact, artefact.all_cells(LAPTOP, store=store), store)
        yield artefact, found_cells, artefact.result(found_cells) if found_cells.records else None


def _overview(root: Path, found: Sequence[tuple[Artefact, ArtefactCells, Result | None]]) -> str:
    rows = []
    for figure in FIGURES.values():
        record = _record(root, figure)
        if record is not None:
            verdict = record.get("verdict") or "computed, no training"
            rows.append((_link(figure.id), figure.title, figure.stands_for, verdict, ""))
    for artefact, found_cells, result in found:
        count = f"{len(found_cells.records)} of {len(found_cells.cells)}"
        rows.append((_link(artefact.id), artefact.title, artefact.stands_for, so_far(found_cells, result), count))
    table = pd.DataFrame(rows, columns=["id", "what", "stands for", "verdict", "cells trained"])
    return f"## All at a glance\n\n{_totals([found_cells for _, found_cells, _ in found])}\n\n{markdown(table)}"


def _totals(found_cells: list[ArtefactCells]) -> str:
    """How many cells are trained, how many networks were trained for them, and for how long."""
    records = [record for one in found_cells for _, record in one.records]
    own = [record for record in records if "taken_from" not in record]
    hours = sum(record["seconds"] * record["machine"]["threads"] for record in own) / 3600.0
    return (
        f"{len(records)} of {sum(len(one.cells) for one in found_cells)} cells are trained: {len(own)} networks, "
        f"{hours:.1f} hours of one core; the other cells share them."
    )


def so_far(found_cells: ArtefactCells, result: Result | None) -> str:
    """The verdict, marked as long as cells are missing."""
    if result is None:
        return PENDING
    return result.verdict + ("" if found_cells.complete or result.verdict in (PENDING, NO_CLAIM) else ", so far")


def _link(id: str) -> str:
    return f"[{id}](#{id})"


def _record(root: Path, figure: Figure) -> dict[str, Any] | None:
    file = root / "studies/results" / figure.id / f"{figure.id}.json"
    found: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return found


def _figure(root: Path, figure: Figure) -> str:
    """A figure without training, if its results are kept."""
    record = _record(root, figure)
    if record is None:
        return ""
    main = pd.DataFrame(record["main"]["data"], columns=record["main"]["columns"])
    picture = f"studies/results/{figure.id}/{figure.id}.png"
    shown = picture if (root / picture).is_file() else None
    words = [*record["sentences"], *([record["reading_aid"]] if record.get("reading_aid") else [])]
    return _section(figure.id, figure.title, record.get("verdict", ""), words, main, shown)


def section(artefact: Artefact, found_cells: ArtefactCells, result: Result | None) -> str:
    """What a page says of an artefact."""
    if result is None:
        sentence = f"Pending: 0 of {len(found_cells.cells)} cells are trained."
        return f"## {artefact.id}\n\n{artefact.title}. {sentence}\n"
    picture = str(PICTURES / f"{artefact.id}.png")
    words = [*result.sentences, result.reading_aid, *([told] if (told := legend(result.summary.columns)) else [])]
    return _section(artefact.id, artefact.title, so_far(found_cells, result), words, result.summary, picture)


def study_section(study: Study, results: Path) -> str:
    """What a page says of a study of short runs."""
    result = study.result(results)
    words = [*result.sentences, result.reading_aid]
    return _section(study.id, study.title, "", words, result.summary, str(PICTURES / f"{study.id}.png"))


def _section(id: str, title: str, verdict: str, sentences: Any, main: pd.DataFrame, picture: str | None) -> str:
    lines = [f"## {id}", "", f"{title}. {f'**{verdict[0].upper()}{verdict[1:]}.**' if verdict else ''}".rstrip(), ""]
    lines += [f"- {sentence}" for sentence in sentences]
    if picture is not None:
        lines += ["", f"![{title}](../{picture})"]
    return "\n".join([*lines, "", *([] if main.empty else [markdown(main)])])


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown; bars in a cell are escaped."""

    def text(cell: Any) -> str:
        return f"{cell:.6g}" if isinstance(cell, float) else str(cell).replace("|", "\\|").replace("\n", " ")

    def line(cells: Any) -> str:
        return "| " + " | ".join(map(text, cells)) + " |"

    rows = [line(table.columns), line(["---"] * len(table.columns)), *map(line, table.itertuples(index=False))]
    return "\n".join(rows) + "\n"
