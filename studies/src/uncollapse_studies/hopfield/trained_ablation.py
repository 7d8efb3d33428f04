"""The ablation: accuracy along alpha with alpha' at 0.5, and along alpha' with alpha at 0.5."""

from __future__ import annotations

import pandas as pd

from ..artefact import ArtefactCells
from ..cells.hopfield import GRID, PLAIN
from ..figure import Result
from ..printed import ABLATION, PRINTED, SHARES
from ..trained import against, agreement, beside, better, in_all, means, scaled_down, settings, smallest_that_counts

ALONG = {"alpha varies": "alpha-{:g}-hidden-0.5", "alpha' varies": "alpha-0.5-hidden-{:g}"}
NUMBER = "accuracy"
MIDDLE = "alpha-0.5-hidden-0.5"
SHAPE = {
    "alpha-0-hidden-0.5": "alpha = 0",
    "alpha-0.5-hidden-0": "alpha' = 0",
    "alpha-1-hidden-0.5": "alpha = 1",
    "alpha-0.5-hidden-1": "alpha' = 1",
}


def result(found_cells: ArtefactCells) -> Result:
    """Table, chart and words."""
    from ..charts.trained_charts import along_chart

    found, grid = means(found_cells, NUMBER), GRID[found_cells.cells[0].budget]
    lines = []
    for name, pattern in ALONG.items():
        lines += [(name, "ours", at, found[label]) for at in grid if (label := pattern.format(at)) in found]
        lines += [(name, "printed", at, value) for at, value in zip(SHARES, ABLATION[name], strict=True)]
    plain = {"ours": found[PLAIN]} if PLAIN in found else {}
    table = pd.DataFrame(lines, columns=["label", "source", "at", "value"])
    verdict, sentences = _verdict(found_cells)
    return Result(
        table=found_cells.long_table(),
        chart=along_chart(
            table,
            list(ALONG),
            "the one that varies (the other is 0.5)",
            found_cells.artefact.title,
            "accuracy in %",
            rules=plain | {"printed": PRINTED[found_cells.artefact.id].values[PLAIN]},
            rule_says="plain network",
        ),
        sentences=[found_cells.progress(), *sentences, *found_cells.training(), scaled_down(found_cells)],
        reading_aid="The lines meet at 0.5. With alpha = 1 attention is left out; with alpha' = 1 it is uniform. "
        "Guessing gives 10 % here (CIFAR-10) and 1 % in print (CIFAR-100).",
        summary=beside(found_cells, [NUMBER, "eval_loss"], PLAIN),
        settings=settings(found_cells),
        verdict=verdict,
    )


def _verdict(found_cells: ArtefactCells) -> tuple[str, list[str]]:
    """The shape of the two printed curves; and, apart from that, whether anything is gained over the plain network."""
    if not found_cells.complete or not {PLAIN, MIDDLE, *SHAPE} <= set(found_cells.numbers(NUMBER)):
        return found_cells.lacking(), []
    printed = PRINTED[found_cells.artefact.id].values
    verdicts, told, level = [], [], means(found_cells, NUMBER)
    gaps, smallest = against(found_cells, NUMBER, MIDDLE, SHAPE), smallest_that_counts(NUMBER, level[MIDDLE])
    for label, words in SHAPE.items():
        theirs = printed[label] - printed[MIDDLE]
        verdicts.append(agreement(gaps[label], -1 if theirs < 0 else 1, smallest))
        told.append(f"{words}: {gaps[label]}, in print {theirs:+.2f}")
    verdict = in_all(verdicts, "comparisons")
    best = max((label for label in level if label != PLAIN), key=lambda label: level[label])
    highest = max(value for label, value in printed.items() if label != PLAIN)
    return verdict, [
        f"Claim: alpha = alpha' = 0.5 is better than 0 or 1 for either. Against it, in points: {'; '.join(told)}: "
        f"{verdict}.",
        f"Does anything gain on the plain network ({level[PLAIN]:.2f} %)? The best of {len(level) - 1} is {best} with "
        f"{level[best]:.2f} %, {better(NUMBER, against(found_cells, NUMBER, PLAIN)[best])}. In print no cell does: at "
        f"most {highest:g} against {printed[PLAIN]:g}, which is the main table's ViT-T.",
    ]
