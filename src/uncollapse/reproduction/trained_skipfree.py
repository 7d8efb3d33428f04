"""Networks without residual connections: accuracy by depth, with inherited scores and the alpha-skip, and without."""

from __future__ import annotations

import pandas as pd

from .artefact import NOT_SEEN, TREND, Gathered
from .cells.hopfield import DEPTHS, OURS, PLAIN
from .figure import Result
from .printed import SKIP_FREE
from .trained import beside, direction, rows, scaled_down, settings

NUMBER = "accuracy"


def result(gathered: Gathered) -> Result:
    """Table, chart and words."""
    from uncollapse.report.trained_charts import along_chart

    found = rows(gathered, NUMBER)
    lines = []
    for k, method in enumerate((PLAIN, OURS)):
        at = {depth: f"{method}-depth-{depth}" for depth in DEPTHS}
        lines += [(method, "ours", depth, found[label]["mean"]) for depth, label in at.items() if label in found]
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
    found = rows(gathered, NUMBER)
    pairs = {
        depth: (found[f"{PLAIN}-depth-{depth}"], found[f"{OURS}-depth-{depth}"])
        for depth in DEPTHS
        if {f"{PLAIN}-depth-{depth}", f"{OURS}-depth-{depth}"} <= set(found)
    }
    if len(found) < len({cell.label for cell in gathered.cells}):
        return "pending", []
    better = [depth for depth, (plain, ours) in pairs.items() if direction(plain, ours, NUMBER) > 0]
    verdict = TREND if len(better) == len(pairs) else f"{TREND} at depth {better}" if better else NOT_SEEN
    gaps = ", ".join(f"{o['mean'] - p['mean']:+.1f} at depth {d}" for d, (p, o) in pairs.items())
    return verdict.replace("[", "").replace("]", ""), [
        f"Claim: without residual connections, inherited scores with the alpha-skip train better at every depth. Here, "
        f"in points of accuracy: {gaps}; better by more than 2 points at {len(better)} of {len(pairs)} depths (one "
        "seed). The comparison cannot tell alpha from alpha'; the central one does."
    ]
