"""Violins of trained networks: cosines of token pairs and entropies of attention rows, by method and layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pandas as pd

from uncollapse.diagnosis.attention_statistics import ENTROPY_WIDTH
from uncollapse.metrics.similarity import ALIGNED, COSINE_WIDTH
from uncollapse.training.recipe import Recipe

from ..artefact import NO_CLAIM, NOT_SEEN, OUT_OF_REACH, TREND, UNDECIDED, ArtefactCells
from ..cells.hopfield import OURS, PLAIN
from ..figure import Result
from ..printed import MODES
from ..trained import against, agreement, beside, better, means, scaled_down, settings, smallest_that_counts
from .violins import GROUP

ALIKE = 0.25  # nats: entropies closer than that count as unchanged
GONE = 0.1  # of the plain network's share of aligned pairs: less counts as disappeared


def histograms(
    found_cells: ArtefactCells, name: str, pick: Callable[[pd.DataFrame], pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """A histogram (layer, low, count) of each label, seeds added up."""
    found: dict[str, list[pd.DataFrame]] = {}
    for cell, _ in found_cells.finished:
        tables = found_cells.store.tables(cell)
        if name in tables:
            found.setdefault(cell.label, []).append(pick(tables[name]))
    return {
        label: pd.concat(parts).groupby(["layer", "low"], as_index=False)["count"].sum()
        for label, parts in found.items()
    }


def similarity(found_cells: ArtefactCells) -> Result:
    """Cosines of token pairs (appendix H)."""
    from uncollapse.report.similarity_violins import COARSER

    verdict, sentences = _aligned(found_cells)
    shapes = histograms(found_cells, "cosine", lambda table: table[table["kind"] == "raw"])
    return _result(found_cells, "cosine_aligned", verdict, sentences, shapes, (COSINE_WIDTH, COARSER), "cosine")


def _aligned(found_cells: ArtefactCells) -> tuple[str, list[str]]:
    """Whether the group of aligned tokens disappears, if there is one."""
    if not {PLAIN, OURS} <= set(found_cells.numbers("cosine_aligned")):
        return found_cells.lacking(), []
    share, gap = means(found_cells, "cosine_aligned"), against(found_cells, "cosine_aligned", PLAIN)[OURS]
    claim = "Claim (appendix H): the group of perfectly aligned tokens disappears with inherited scores. Here"
    counted = (
        f"{share[PLAIN]:.1%} of the pairs have a cosine above {ALIGNED:g} with self-attention, {share[OURS]:.1%} with "
        "inherited scores"
    )
    if share[PLAIN] < GROUP:
        verdict = OUT_OF_REACH
        told = f"{claim} {counted}: self-attention has hardly such a group to lose (less than {GROUP:.0%}), {verdict}."
    else:
        verdict = agreement(gap, -1, smallest_that_counts("cosine_aligned", share[PLAIN]))
        gone = f"{'less' if share[OURS] < GONE * share[PLAIN] else 'not less'} than {GONE:g} of it"
        told = f"{claim} {counted}, {gone}; the difference of the shares is {gap}: {verdict}."
    return verdict, [told, *_modes(found_cells)]


def _modes(found_cells: ArtefactCells) -> list[str]:
    """The mode of the cosines by layer, ours beside the printed ones: by it the paper tells a group at 1."""
    ours = {}
    for label in (PLAIN, OURS):
        tables = [found_cells.store.tables(cell)["layers"] for cell, _ in found_cells.finished if cell.label == label]
        ours[label] = pd.concat(tables).groupby("layer")["cosine_mode"].mean()
    told = "; ".join(f"{label} {_values(found)}" for label, found in ours.items())
    printed = "; ".join(f"{of} {_values(found)}" for of, found in MODES[found_cells.artefact.id].items())
    return [f"Mode of the cosines by layer, mean of seeds: {told}. In print: {printed}."]


def _values(values: Iterable[float]) -> str:
    """One value if they are all alike, else each."""
    found = [f"{value:.2f}" for value in values]
    return f"{found[0]} in each of {len(found)} layers" if len(set(found)) == 1 else " ".join(found)


def entropy(found_cells: ArtefactCells) -> Result:
    """Entropies of attention rows (appendix I)."""
    verdict, sentences = _unchanged(found_cells)
    shapes = histograms(found_cells, "entropy", lambda table: table)
    sentences += _by_layer(shapes, ENTROPY_WIDTH)
    most = math.log(keys(found_cells.cells[0].resolved()))
    return _result(found_cells, "entropy_mean", verdict, sentences, shapes, (ENTROPY_WIDTH, 1), "entropy in nats", most)


def keys(recipe: Recipe) -> int:
    """Over how many keys a row of attention can spread at most: the tokens of a sequence."""
    return recipe.length if recipe.task == "language" else (recipe.image_size // recipe.patch_size) ** 2 + 1


def _unchanged(found_cells: ArtefactCells) -> tuple[str, list[str]]:
    """Whether inherited scores leave the entropy as it is; the paper shows it of ViT alone."""
    if not {PLAIN, OURS} <= set(found_cells.numbers("entropy_mean")):
        return found_cells.lacking(), []
    gap = against(found_cells, "entropy_mean", PLAIN)[OURS]
    if "vit" not in found_cells.artefact.id:
        return NO_CLAIM, [
            f"The paper shows entropies of ViT only (appendix I: they do not change); of GPT this is our addition. "
            f"With inherited scores the mean changes by {gap} nats: {better('entropy_mean', gap)}."
        ]
    inside, outside = gap.low > -ALIKE and gap.high < ALIKE, gap.low > ALIKE or gap.high < -ALIKE
    verdict = TREND if inside else NOT_SEEN if outside else UNDECIDED
    return verdict, [
        "Claim (appendix I): attention entropy is small in some layers, and inherited scores do not change that. Here "
        f"the mean changes by {gap} nats (within {ALIKE:g}, interval included, counts as unchanged): {verdict}."
    ]


def _by_layer(shapes: dict[str, pd.DataFrame], width: float) -> list[str]:
    """Mean entropies by layer, from the histograms that are drawn."""
    told = []
    for label in (PLAIN, OURS):
        if label in shapes:
            table = shapes[label].assign(total=lambda t: (t["low"] + width / 2) * t["count"])
            sums = table.groupby("layer")[["total", "count"]].sum()
            told.append(f"{label} {_values(sums['total'] / sums['count'])}")
    return [f"Mean by layer: {'; '.join(told)}."] if told else []


def _result(
    found_cells: ArtefactCells,
    number: str,
    verdict: str,
    sentences: list[str],
    shapes: dict[str, pd.DataFrame],
    bins: tuple[float, int],
    unit: str,
    most: float | None = None,
) -> Result:
    from ..charts.violin_panels import violin_panels

    title = (found_cells.artefact.title, "all held-out examples of the diagnosis, seeds together; green: the mean")
    return Result(
        table=found_cells.long_table(),
        chart=violin_panels(shapes, *bins, title, unit, most=most),
        sentences=[found_cells.progress(), *sentences, *found_cells.training(), scaled_down(found_cells)],
        reading_aid="A violin shows all values of a layer. Cosines at 1: tokens that point the same way. Entropy at 0: "
        "rows that look at one key.",
        summary=beside(found_cells, [number, "cosine_mean", "residual_ratio", "entropy_normalised"], PLAIN),
        settings=settings(found_cells),
        verdict=verdict,
        finding=" ".join(sentences[:1]),
    )
