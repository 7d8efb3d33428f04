"""`uncollapse reproduce results`: docs/results.md, its pictures and README's table, from the committed results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from uncollapse.cli.command import Command, UserError, option

from .. import locations


@dataclass(frozen=True)
class ResultsOptions:
    """Options of `uncollapse reproduce results`."""

    project: Path | None = option(None, "checkout of uncollapse to write to (default: the one that is installed)")


def run(settings: ResultsOptions) -> int:
    """Write the page, the table in README, and a picture of each artefact with at least one trained cell."""
    root = _project(settings.project)
    from uncollapse.files import write

    from ..readme_table import README, readme_text
    from ..results_page import PAGE, PICTURES, drawn, results_text

    (root / PICTURES).mkdir(parents=True, exist_ok=True)
    for artefact, _, result in drawn(root):
        if result is not None:
            result.chart.save(root / PICTURES / f"{artefact.id}.png", scale_factor=1.5)
    write(root / PAGE, results_text(root))
    readme = readme_text(root)
    written = [str(root / PAGE)]
    if readme is not None:
        write(root / README, readme)
        written.append(f"the table in {root / README}")
    print(f"written: {', '.join(written)}, and pictures in {root / PICTURES}")
    return 0


def _project(given: Path | None) -> Path:
    """The checkout to write to; the files of any other project are left alone."""
    if given is None:
        root = locations.project()
        if root is None:
            raise UserError(
                "the results page is part of the repository of uncollapse, and this package is installed without it; "
                "name a checkout with --project DIR."
            )
        return root
    if not locations.is_project(given):
        raise UserError(
            f"{given} is no checkout of uncollapse, whose pyproject.toml names uncollapse and which has a folder "
            "studies; name one with --project DIR."
        )
    return given


COMMAND = Command(
    name="reproduce results",
    summary="Write docs/results.md, its pictures and the table in README.md from the results in studies/results.",
    example="uncollapse reproduce results --project path/to/uncollapse",
    options=ResultsOptions,
    run=run,
)
