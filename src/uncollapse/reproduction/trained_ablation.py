"""The ablation: accuracy along alpha with alpha' at 0.5, and along alpha' with alpha at 0.5."""

from __future__ import annotations

import pandas as pd

from .artefact import NOT_SEEN, TREND, Gathered
from .cells.hopfield import GRID, PLAIN
from .figure import Result
from .printed import ABLATION, PRINTED, SHARES
from .trained import beside, direction, rows, scaled_down, settings

ALONG = {"alpha varies": "alpha-{:g}-hidden-0.5", "alpha' varies": "alpha-0.5-hidden-{:g}"}
NUMBER = "accuracy"


def result(gathered: Gathered) -> Result:
    """Table, chart and words."""
    from uncollapse.report.trained_charts import along_chart

    found = rows(gathered, NUMBER)
    lines = []
    for name, pattern in ALONG.items():
        lines += [(name, "ours", at, found[label]["mean"]) for at in GRID if (label := pattern.format(at)) in found]
        lines += [(name, "printed", at, value) for at, value in zip(SHARES, ABLATION[name], strict=True)]
    table = pd.DataFrame(lines, columns=["label", "source", "at", "value"])
    verdict, sentences = _verdict(gathered)
    return Result(
        table=gathered.long_table(),
        chart=along_chart(
            table, list(ALONG), "the one that varies (the other is 0.5)", gathered.artefact.title, "accuracy in %"
        ),
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
    printed = PRINTED[gathered.artefact.id].values
    highest = max(value for label, value in printed.items() if label != PLAIN)
    return verdict, [
        f"Claim: some alpha and alpha' improve on the plain network. Here the best of {len(grid)} is {best} with "
        f"{grid[best]['mean']:.2f} %, the plain network has {found[PLAIN]['mean']:.2f} %: {verdict} (one seed: a "
        "difference below 2 points is taken for chance; and the best of several is lucky more often than one). In "
        f"print every cell of the ablation is below the plain ViT-T (at most {highest:g} against {printed[PLAIN]:g}).",
        f"Lowest: {worst} with {grid[worst]['mean']:.2f} %; in print alpha = 1 ({printed['alpha-1-hidden-0.5']:.2f} %, "
        "which is guessing).",
    ]
