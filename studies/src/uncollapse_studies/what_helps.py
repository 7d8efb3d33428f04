"""docs/what-helps.md and the evidence lines of the remedies, from the studies of our own."""

from __future__ import annotations

from pathlib import Path

from .artefact import ArtefactCells
from .artefacts import REMEDIES
from .remedies.rates import all_runs, compared, evidence
from .results_page import drawn, section, study_section
from .study import STUDIES
from .trained import described

PAGE = Path("docs/what-helps.md")
EVIDENCE = Path("src/uncollapse/remedies/evidence.json")
INTRODUCTION = """\
# What helps

The known [remedies](remedies.md) side by side, under one protocol: the same small network, data, seeds and budget, each
remedy at the strength that its authors give. `uncollapse reproduce results` writes this page from the trained networks
under `studies/results/`; `uncollapse reproduce ID` trains what is missing, and `uncollapse reproduce ID --force` trains
it again.

- **Limits.** The networks are small and training is short. What helps here may not help a large model; what does
  nothing here may.
- ± is the standard deviation over seeds. A difference stands with its 95 % interval in brackets (Welch), widened by
  Holm's correction over the remedies of a table, and counts as better or worse only if that excludes 0.
"""


def page_text(root: Path) -> str:
    """The whole page."""
    found = [entry for entry in drawn(root) if entry[0].paper == REMEDIES]
    results = root / "studies/results"
    studies = [study_section(study, results) for study in STUDIES.values() if study.is_kept(results)]
    return "\n".join([INTRODUCTION, *(section(*entry) for entry in found), *studies]).rstrip() + "\n"


def evidence_lines(root: Path) -> dict[str, str]:
    """One sentence for each remedy that a study has tested with several seeds."""
    lines: dict[str, str] = {}
    for artefact, found_cells, _ in drawn(root):
        if artefact.id.startswith("remedies-rates") and found_cells.records:
            lines = evidence(compared(all_runs(found_cells)), _where(found_cells)) | lines
    return lines


def _where(found_cells: ArtefactCells) -> str:
    return "LLaMA on " + ", ".join(described(found_cells.cells[:1]).split(", ")[:1])
