"""Figure 7 of the second paper: rho over updates, with LocAteR and without."""

from __future__ import annotations

import numpy as np
import pandas as pd

from uncollapse.statistics import FEWEST, differences, summarise

from ..artefact import NOT_SEEN, TREND, UNDECIDED, ArtefactCells
from ..cells.localization import PLAIN
from ..cells.measured import throughout
from ..figure import Result
from ..trained import agreement, beside, in_all, means, scaled_down, settings, smallest_that_counts
from .trained_penalty import STRONGEST

NUMBER = "localisation"
UNIFORM = 0.1  # localisation below which propagation counts as uniform


def result(found_cells: ArtefactCells) -> Result:
    """Maps, and whether positions differ more with LocAteR than without."""
    from uncollapse.report.rho_map import BINS

    from ..charts.trained_charts import propagation_chart

    rho = pd.concat(
        [
            found_cells.store.tables(cell)["rho"].assign(label=cell.label, seed=cell.seed)
            for cell, _ in found_cells.finished
            if "rho" in found_cells.store.tables(cell)
        ],
        ignore_index=True,
    )
    rho = rho.groupby(["label", "step", "position"], as_index=False, sort=False)["rho"].mean()
    verdict, sentences = _verdict(found_cells)
    return Result(
        table=rho,
        chart=propagation_chart(rho, found_cells.labels, BINS, found_cells.artefact.title),
        sentences=[found_cells.progress(), *sentences, *found_cells.training(), scaled_down(found_cells)],
        reading_aid="A column is a diagnosis of the network; horizontal stripes are positions whose signal arrives "
        "more often than that of others.",
        summary=beside(found_cells, [NUMBER, "propagation_mean", "qk_trace", "qk_scale"], PLAIN),
        settings=settings(found_cells),
        verdict=verdict,
    )


def _verdict(found_cells: ArtefactCells) -> tuple[str, list[str]]:
    """Both halves of the caption, on the mean over training: stripes with LocAteR, uniform without."""
    found = over_training(found_cells)
    if not {PLAIN, STRONGEST} <= set(found):
        return found_cells.lacking(), []
    others = {label: summarise(values) for label, values in found.items()}
    base = others.pop(PLAIN)
    gap, plain = differences(base, others)[STRONGEST], base.estimate()
    stripes = agreement(gap, 1, smallest_that_counts(NUMBER, plain.value))
    uniform = TREND if plain.high < UNIFORM else NOT_SEEN if plain.low > UNIFORM else UNDECIDED
    last = means(found_cells, NUMBER)
    told = "; ".join(
        f"{label} {np.mean(values):.3f} on the mean over training, {last[label]:.3f} at its end"
        for label, values in found.items()
        if label in last
    )
    return in_all([stripes, uniform], "halves"), [
        "Claim: with LocAteR a few tokens propagate more than the others (stripes); without it propagation is uniform "
        f"at each time. Localisation of rho (0: all keys alike, 1: one key): {told}.",
        f"Stripes with LocAteR: {gap} against no penalty, {stripes}. Uniform without it (below {UNIFORM:g}): "
        f"{plain.value:.3f}{f' ({plain.low:.3f} to {plain.high:.3f})' if plain.seeds >= FEWEST else ''}, {uniform}.",
    ]


def over_training(found_cells: ArtefactCells) -> dict[str, list[float]]:
    """The localisation, mean of all diagnoses of a run: by label, a list over the seeds."""
    found: dict[str, list[float]] = {}
    for cell, record in found_cells.finished:
        value = throughout(record, NUMBER)
        if value is not None:
            found.setdefault(cell.label, []).append(value)
    return found
