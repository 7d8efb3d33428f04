"""Networks without residual connections: accuracy by depth, with inherited scores and the alpha-skip, and without."""

from __future__ import annotations

import pandas as pd

from .artefact import OUT_OF_REACH, PENDING, Gathered
from .cells.hopfield import DEPTHS, OURS, PLAIN
from .figure import Result
from .printed import SKIP_FREE
from .seeds import SMALLEST
from .trained import against, agreement, beside, in_all, means, scaled_down, settings

NUMBER = "accuracy"
GUESSING, MORE = 10.0, SMALLEST[NUMBER]  # % of ten classes, and how much above it counts


def result(gathered: Gathered) -> Result:
    """Table, chart and words."""
    from uncollapse.report.trained_charts import along_chart

    found = means(gathered, NUMBER)
    lines = []
    for k, method in enumerate((PLAIN, OURS)):
        at = {depth: f"{method}-depth-{depth}" for depth in DEPTHS[gathered.cells[0].scale]}
        lines += [(method, "ours", depth, found[label]) for depth, label in at.items() if label in found]
        lines += [(method, "printed", depth, cifar10[k]) for depth, (cifar10, _) in SKIP_FREE.items()]
    table = pd.DataFrame(lines, columns=["label", "source", "at", "value"])
    verdict, sentences = _verdict(gathered)
    return Result(
        table=gathered.long_table(),
        chart=along_chart(table, [PLAIN, OURS], "layers", gathered.artefact.title, "accuracy in %"),
        sentences=[gathered.progress(), *sentences, *gathered.training(), scaled_down(gathered)],
        reading_aid="Guessing gives 10 %. hopfield has alpha = alpha' = 0.5, so its tokens still have the alpha-skip.",
        summary=beside(gathered, [NUMBER, "residual_ratio", "cosine_aligned"]),
        settings=settings(gathered),
        verdict=verdict,
    )


def _verdict(gathered: Gathered) -> tuple[str, list[str]]:
    """Depth by depth; where both networks guess, a depth says nothing."""
    if not gathered.complete:
        return PENDING, []
    found = gathered.numbers(NUMBER)
    both = [d for d in DEPTHS[gathered.cells[0].scale] if {f"{PLAIN}-depth-{d}", f"{OURS}-depth-{d}"} <= set(found)]
    gaps = {d: against(gathered, NUMBER, f"{PLAIN}-depth-{d}", f"{OURS}-depth-{d}") for d in both}
    level = means(gathered, NUMBER)
    chance = [d for d in both if max(level[f"{name}-depth-{d}"] for name in (PLAIN, OURS)) < GUESSING + MORE]
    verdicts = [agreement(gaps[d].sign, 1) for d in both if d not in chance]
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
