"""Made-up cells on disk, and all cells that are planned with numbers of our choice."""

import json
from collections.abc import Callable
from pathlib import Path

from uncollapse_studies.audit import plan
from uncollapse_studies.audit.claim import AuditRun
from uncollapse_studies.cells.cell import Cell


def written(folder: Path, *groups) -> AuditRun:
    """A run that reads these cells and no others."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for number, cell in enumerate(cell for group in groups for cell in group):
        (folder / f"{number}.json").write_text(json.dumps(cell), encoding="utf-8")
    return AuditRun("smallest", cells=folder)


def planned(artefact: str, number: str, level: Callable[[Cell], float]) -> list[dict]:
    """Every cell that is planned for an artefact, with a number by cell that is the same throughout training."""
    return [
        {
            "artefact": artefact,
            "label": cell.label,
            "method": cell.method,
            "seed": cell.seed,
            "settings": cell.settings,
            "numbers": {number: level(cell)},
            "curves": {"step": [0, 1], number: [level(cell), level(cell)]},
            "status": "finished",
        }
        for cell in plan.planned(artefact).values()
    ]
