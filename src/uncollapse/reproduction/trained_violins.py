"""Violins of trained networks: cosines of token pairs and entropies of attention rows, by method and layer."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from .artefact import NOT_SEEN, TREND, Gathered
from .cells.hopfield import OURS, PLAIN
from .figure import Result
from .trained import beside, compared, direction, rows, scaled_down, settings

ALIKE = 0.25  # nats: entropies closer than that count as unchanged


def histograms(gathered: Gathered, name: str, pick: Callable[[pd.DataFrame], pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """A histogram (layer, low, count) of each label, seeds added up."""
    found: dict[str, list[pd.DataFrame]] = {}
    for cell, _ in gathered.records:
        tables = gathered.store.tables(cell)
        if name in tables:
            found.setdefault(cell.label, []).append(pick(tables[name]))
    return {
        label: pd.concat(parts).groupby(["layer", "low"], as_index=False)["count"].sum()
        for label, parts in found.items()
    }


def similarity(gathered: Gathered) -> Result:
    """Cosines of token pairs (appendix H)."""
    from uncollapse.report.similarity_violins import COARSER, WIDTH

    claim = "Claim (appendix H): the group of perfectly aligned tokens disappears with inherited scores."
    found = rows(gathered, "cosine_aligned")
    verdict, sentences = "pending", []
    if {PLAIN, OURS} <= set(found):
        lower = direction(found[PLAIN], found[OURS], "cosine_aligned") < 0
        verdict = TREND if lower else NOT_SEEN
        sentences = [f"{claim} Here: {verdict}."]
        if found[PLAIN]["mean"] < 0.01:
            verdict = "cannot be tested at this scale"
            sentences = [f"{claim} Here self-attention has no such group to lose: {verdict}."]
    shapes = histograms(gathered, "cosine", lambda table: table[table["kind"] == "raw"])
    return _result(gathered, "cosine_aligned", verdict, sentences, shapes, (WIDTH, COARSER), "cosine")


def entropy(gathered: Gathered) -> Result:
    """Entropies of attention rows (appendix I)."""
    from uncollapse.report.entropy_violins import WIDTH

    found = rows(gathered, "entropy_mean")
    verdict, sentences = "pending", []
    if {PLAIN, OURS} <= set(found):
        gap = found[OURS]["mean"] - found[PLAIN]["mean"]
        verdict = TREND if abs(gap) < ALIKE else NOT_SEEN
        sentences = [
            f"Claim (appendix I): inherited scores leave the attention entropy as it is. Here it changes by {gap:+.2f} "
            f"nats (below {ALIKE:g} counts as unchanged): {verdict}."
        ]
    shapes = histograms(gathered, "entropy", lambda table: table)
    return _result(gathered, "entropy_mean", verdict, sentences, shapes, (WIDTH, 1), "entropy in nats")


def _result(
    gathered: Gathered,
    number: str,
    verdict: str,
    sentences: list[str],
    shapes: dict[str, pd.DataFrame],
    bins: tuple[float, int],
    unit: str,
) -> Result:
    from uncollapse.report.violin_panels import violin_panels

    found = rows(gathered, number)
    if PLAIN in found:
        sentences = [*sentences, *(compared(number, PLAIN, label, found) for label in found if label != PLAIN)]
    title = (gathered.artefact.title, "all held-out examples of the diagnosis, seeds together; green: the mean")
    return Result(
        table=gathered.long_table(),
        chart=violin_panels(shapes, *bins, title, unit),
        sentences=[gathered.progress(), *sentences, *gathered.training(), scaled_down(gathered)],
        reading_aid="A violin shows all values of a layer. Cosines at 1: tokens that point the same way. Entropy at 0: "
        "rows that look at one key.",
        summary=beside(gathered, [number, "cosine_mean", "residual_ratio", "entropy_normalised"]),
        settings=settings(gathered),
        verdict=verdict,
    )
