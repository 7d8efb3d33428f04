"""README's table of the central comparison, written between two marks by `uncollapse reproduce results`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from .artefact import Gathered
from .artefacts import ARTEFACTS
from .cells.store import Store
from .results_page import SCALE, markdown
from .trained import beside, main_number

README = Path("README.md")
BEGIN, END = "<!-- table of `uncollapse reproduce results` -->", "<!-- end of the table -->"
CENTRAL = {"hopfield-main-gpt2": "GPT, WikiText-2", "hopfield-main-vit": "ViT, CIFAR-10"}


def readme_text(root: Path) -> str | None:
    """README with the table as the cells have it; None where there is no README with the two marks."""
    file = root / README
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return None
    return f"{before}{begin}\n\n{central_table(root)}\n{end}{after}"


def central_table(root: Path) -> str:
    """Methods by rows; for each network our number, over how many seeds, and the paper's."""
    tables = []
    for id, network in CENTRAL.items():
        gathered = Gathered(ARTEFACTS[id], ARTEFACTS[id].all_cells(SCALE), Store(root / "results/cells"))
        if gathered.records:
            number = main_number(gathered)
            table = beside(gathered, [number]).astype(str).set_index("method")
            names = {number: f"{network}: {number}", "seeds": f"seeds ({network})"}
            tables.append(table.rename(columns=names))
    return markdown(pd.concat(tables, axis=1).fillna("").reset_index()) if tables else "No cell is in yet.\n"
