"""Networks without residual connections: accuracy by depth, with inherited scores and the alpha-skip, and without."""

from __future__ import annotations

import pandas as pd

from ..artefact import OUT_OF_REACH, PENDING, ArtefactCells
from ..cells.hopfield import DEPTHS, OURS, PLAIN
from ..figure import Result
from ..printed import SKIP_FREE
from ..trained import SMALLEST, against, agreement, beside, in_all, means, scaled_down, settings

NUMBER = "accuracy"
CHANCE = 12.0  # accuracy of ten classes below which a network guesses


def result(found_cells: ArtefactCells) -> Result:
    """Table, chart and words."""
    from ..charts.trained_charts import along_chart

    found = means(found_cells, NUMBER)
    lines = []
    for k, method in enumerate((PLAIN, OURS)):
        at = {depth: f"{method}-depth-{depth}" for depth in DEPTHS[found_cells.cells[0].budget]}
        lines += [(method, "ours", depth, found[label]) for depth, label in at.items() if label in found]
        lines += [(method, "printed", depth, cifar10[k]) for depth, (cifar10, _) in SKIP_FREE.items()]
    table = pd.DataFrame(lines, columns=["label", "source", "at", "value"])
    verdict, sentences = _verdict(found_cells)
    return Result(
        table=found_cells.long_table(),
        chart=along_chart(table, [PLAIN, OURS], "layers", found_cells.artefact.title, "accuracy in %"),
        sentences=[found_cells.progress(), *sentences, *found_cells.training(), scaled_down(found_cells)],
        reading_aid="Guessing gives 10 %. hopfield has alpha = alpha' = 0.5, so its tokens still have the alpha-skip.",
        summary=beside(found_cells, [NUMBER, "residual_ratio", "cosine_aligned"]),
        settings=settings(found_cells),
        verdict=verdict,
    )


def _verdict(found_cells: ArtefactCells) -> tuple[str, list[str]]:
    """Depth by depth; where both networks guess, a depth says nothing."""
    if not found_cells.complete:
        return PENDING, []
    found = found_cells.numbers(NUMBER)
    both = [d for d in DEPTHS[found_cells.cells[0].budget] if {f"{PLAIN}-depth-{d}", f"{OURS}-depth-{d}"} <= set(found)]
    pairs = {d: (f"{PLAIN}-depth-{d}", f"{OURS}-depth-{d}") for d in both}
    gaps = {d: against(found_cells, NUMBER, plain, [ours])[ours] for d, (plain, ours) in pairs.items()}
    level = means(found_cells, NUMBER)
    chance = [d for d in both if max(level[name] for name in pairs[d]) < CHANCE]
    verdicts = [agreement(gaps[d], 1, SMALLEST[NUMBER]) for d in both if d not in chance]
    verdict = in_all(verdicts, "depths") if verdicts else OUT_OF_REACH
    sentences = [
        "Claim: without residual connections, inherited scores with the alpha-skip train better at every depth up to 8 "
        f"(at 12 both print 10 %, guessing). Here, in points of accuracy: "
        f"{', '.join(f'{gaps[d]} at depth {d}' for d in both)}: {verdict}.",
        "hopfield has a skip here that self-attention lacks; this comparison does not say whether alpha' adds to it.",
    ]
    if chance:
        sentences.append(f"Both networks guess at depth {', '.join(map(str, chance))}: left out of the verdict.")
    return verdict, sentences
