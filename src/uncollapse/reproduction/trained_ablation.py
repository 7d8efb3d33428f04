"""The ablation: accuracy along alpha with alpha' at 0.5, and along alpha' with alpha at 0.5."""

from __future__ import annotations

import pandas as pd

from .artefact import NOT_SEEN, TREND, Gathered
from .cells.hopfield import GRID, PLAIN
from .figure import Result
from .printed import PRINTED
from .trained import beside, direction, rows, scaled_down, settings

ALONG = {"alpha varies, alpha' = 0.5": "alpha-{:g}-hidden-0.5", "alpha' varies, alpha = 0.5": "alpha-0.5-hidden-{:g}"}
NUMBER = "accuracy"


def result(gathered: Gathered) -> Result:
    """Table, chart and words."""
    from uncollapse.report.trained_charts import along_chart

    found, printed = rows(gathered, NUMBER), PRINTED[gathered.artefact.id].values
    lines = []
    for name, pattern in ALONG.items():
        for value in GRID:
            label = pattern.format(value)
            if label in found:
                lines.append((name, "ours", value, found[label]["mean"]))
            if label in printed:
                lines.append((name, "printed", value, printed[label]))
    table = pd.DataFrame(lines, columns=["label", "source", "at", "value"])
    verdict, sentences = _verdict(gathered)
    return Result(
        table=gathered.long_table(),
        chart=along_chart(table, list(ALONG), "the one that varies", gathered.artefact.title, "accuracy in %"),
        sentences=[gathered.progress(), *sentences, *gathered.training(), scaled_down(gathered)],
        reading_aid="The lines meet at 0.5. With alpha = 1 attention is left out; with alpha' = 1 it is uniform.",
        summary=beside(gathered, [NUMBER, "eval_loss"]),
        settings=settings(gathered),
        verdict=verdict,
    )


def _verdict(gathered: Gathered) -> tuple[str, list[str]]:
    found = rows(gathered, NUMBER)
    grid = {label: numbers for label, numbers in found.items() if label != PLAIN}
    if len(found) < len({cell.label for cell in gathered.cells}):
        return "pending", []
    best = max(grid, key=lambda label: grid[label]["mean"])
    worst = min(grid, key=lambda label: grid[label]["mean"])
    gain = direction(found[PLAIN], grid[best], NUMBER)
    verdict = TREND if gain > 0 else NOT_SEEN
    return verdict, [
        f"Claim: some alpha and alpha' improve on the plain network. Here the best is {best} with "
        f"{grid[best]['mean']:.2f} %, the plain network has {found[PLAIN]['mean']:.2f} %: {verdict} (one seed: a "
        "difference below 2 points is taken for chance). In print every cell of the ablation is below the plain ViT-T "
        "(at most 72.66 against 73.08).",
        f"Lowest: {worst} with {grid[worst]['mean']:.2f} %; in print alpha = 1 (1.00 %).",
    ]
