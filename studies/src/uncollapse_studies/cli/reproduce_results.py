"""`uncollapse reproduce results`: docs/results.md, its pictures and README's table, from what lies under results/."""

from __future__ import annotations

from pathlib import Path

from uncollapse.cli.command import UserError

from .reproduce import Settings


def run_results(settings: Settings) -> int:
    """Write the page and a picture for each artefact of which a cell is in; `--out` is the folder of the project."""
    from uncollapse.training.run_folder import write

    from ..readme_table import README, readme_text
    from ..results_page import PAGE, PICTURES, drawn, results_text

    root = settings.out or Path()
    if not (root / "studies/results").is_dir():
        raise UserError(
            f"{root.resolve()} has no folder results; run this in the project's folder, or name it with --out."
        )
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
