"""`uncollapse reproduce results`: the pages of results, their pictures and README's table, from what is committed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from uncollapse.cli.command import Command, option

from .project import find_project


@dataclass(frozen=True)
class ResultsOptions:
    """Options of `uncollapse reproduce results`."""

    project: Path | None = option(None, "checkout of uncollapse to write to (default: the one that is installed)")


def run(settings: ResultsOptions) -> int:
    """Write the page, the tables in README, and a picture of each artefact with at least one trained cell."""
    root = find_project(settings.project)
    import json

    from uncollapse.files import write

    from ..locations import RESULTS
    from ..readme_tables import README, readme_text
    from ..results_page import PAGE, PICTURES, drawn, results_text
    from ..study import STUDIES
    from ..what_helps import EVIDENCE, evidence_lines, page_text
    from ..what_helps import PAGE as WHAT_HELPS

    (root / PICTURES).mkdir(parents=True, exist_ok=True)
    for artefact, _, result in drawn(root):
        if result is not None:
            result.chart.save(root / PICTURES / f"{artefact.id}.png", scale_factor=1.5)
    for study in STUDIES.values():
        if study.is_kept(root / RESULTS):
            study.result(root / RESULTS).chart.save(root / PICTURES / f"{study.id}.png", scale_factor=1.5)
    write(root / PAGE, results_text(root))
    write(root / WHAT_HELPS, page_text(root))
    write(root / EVIDENCE, json.dumps(evidence_lines(root), indent=1, sort_keys=True) + "\n")
    readme = readme_text(root)
    written = [str(root / PAGE), str(root / WHAT_HELPS)]
    if readme is not None:
        write(root / README, readme)
        written.append(f"the tables in {root / README}")
    print(f"written: {', '.join(written)}, and pictures in {root / PICTURES}")
    return 0


COMMAND = Command(
    name="reproduce results",
    summary="Write docs/results.md and docs/what-helps.md, their pictures, the evidence of remedies, README's tables.",
    example="uncollapse reproduce results --project path/to/uncollapse",
    options=ResultsOptions,
    run=run,
)
