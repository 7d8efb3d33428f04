"""docs/what-helps.md and the evidence lines of the remedies, from the studies of our own."""

from __future__ import annotations

from pathlib import Path

from .results_page import study_section
from .study import STUDIES, Study

PAGE = Path("docs/what-helps.md")
EVIDENCE = Path("src/uncollapse/remedies/evidence.json")
INTRODUCTION = """\
# What helps

The known [remedies](remedies.md) side by side, under one protocol: the same small network, data, seeds and budget, each
remedy at the strength that its authors give. `uncollapse reproduce results` writes this page from the runs kept under
`studies/results/`; `uncollapse reproduce runs ID` makes what is missing, and `uncollapse reproduce runs ID --force`
makes all of it again.

- **Limits.** The networks are small and training is short. What helps here may not help a large model; what does
  nothing here may.
- ± is the standard deviation over seeds. A difference stands with its 95 % interval in brackets (Welch), widened by
  Holm's correction over the remedies of a table, and counts as better or worse only if that excludes 0.
"""


def page_text(root: Path) -> str:
    """The whole page."""
    results = root / "studies/results"
    return "\n".join([INTRODUCTION, *(study_section(study, results) for study in _kept(results))]).rstrip() + "\n"


def evidence_lines(root: Path) -> dict[str, str]:
    """What the studies say of each remedy, one sentence after the other."""
    lines: dict[str, str] = {}
    for study in _kept(root / "studies/results"):
        for name, sentence in study.evidence(root / "studies/results").items():
            lines[name] = f"{lines[name]}. {sentence[0].upper()}{sentence[1:]}" if name in lines else sentence
    return lines


def _kept(results: Path) -> list[Study]:
    return [study for study in STUDIES.values() if study.is_kept(results)]
