"""README's table of the central comparison and what it shows, written between two marks by `reproduce results`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from .artefact import ArtefactCells
from .artefacts import ARTEFACTS
from .cells.hopfield import PLAIN
from .cells.store import Store
from .results_page import LAPTOP, PAGE, markdown, so_far
from .trained import beside, main_number

README = Path("README.md")
BEGIN, END = "<!-- table of `uncollapse reproduce results` -->", "<!-- end of the table -->"
CENTRAL = {"hopfield-main-gpt2": "GPT", "hopfield-main-vit": "ViT"}
TOLD = (*CENTRAL, "hopfield-similarity-vit", "localization-fig6")  # whose findings README tells


def readme_text(root: Path) -> str | None:
    """README with table and findings as the cells have it; None where there is no README with the two marks."""
    file = root / README
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return None
    parts = [part for part in (central_table(root), findings(root)) if part]
    return f"{before}{begin}\n\n{chr(10).join(parts)}\n{end}{after}"


def central_table(root: Path) -> str:
    """Methods by rows; for each network our number, its difference from self-attention, and the paper's number."""
    tables = []
    for id, network in CENTRAL.items():
        found_cells = _found_cells(root, id)
        if found_cells.records:
            table = beside(found_cells, [main_number(found_cells)], PLAIN).astype(str).set_index("method")
            table.columns = [f"{network}: {name.split(' ')[0] if 'printed' in name else name}" for name in table]
            tables.append(table)
    return markdown(pd.concat(tables, axis=1).fillna("").reset_index()) if tables else "No cell is trained yet.\n"


def findings(root: Path) -> str:
    """A line for each artefact that README tells of: its verdict and its finding."""
    lines = []
    for id in TOLD:
        found_cells = _found_cells(root, id)
        if found_cells.records:
            result = ARTEFACTS[id].result(found_cells)
            verdict = so_far(found_cells, result)
            lines.append(f"- [{ARTEFACTS[id].title}]({PAGE}#{id}): **{verdict}**. {result.finding}".rstrip())
    return "\n".join(lines) + "\n" if lines else ""


def _found_cells(root: Path, id: str) -> ArtefactCells:
    store = Store(root / "studies/results/cells")
    return ArtefactCells(ARTEFACTS[id], ARTEFACTS[id].all_cells(LAPTOP, store=store), store)
