"""Networks that learn their coefficients: what alpha and alpha' become, by layer and head."""

from __future__ import annotations

import pandas as pd

from ..artefact import NO_CLAIM, ArtefactCells
from ..cells.hopfield import LEARNED, PLAIN
from ..figure import Result
from ..trained import beside, main_number, scaled_down, settings


def result(found_cells: ArtefactCells) -> Result:
    """Table, chart and words."""
    from ..charts.learned_chart import learned_chart

    number, values = main_number(found_cells), learned_values(found_cells)
    sentences = [said for label in LEARNED for said in _sentence(values[values["label"] == label], label)]
    return Result(
        table=by_head(values),
        chart=learned_chart(values, found_cells.artefact.title),
        sentences=[found_cells.progress(), *sentences, *found_cells.training(), scaled_down(found_cells)],
        reading_aid="A dot is a head of one seed: the weight of the scores it inherits. A bar is the mean of a layer. "
        "0 is ordinary attention, 1 inherits everything; the dashed line is where the values started.",
        summary=beside(found_cells, [number], PLAIN),
        settings=settings(found_cells),
        verdict=NO_CLAIM if found_cells.complete else found_cells.lacking(),
        finding=" ".join(sentences[:1]),
    )


def learned_values(found_cells: ArtefactCells) -> pd.DataFrame:
    """Columns label, seed, layer, head, alpha_hidden, alpha: the values at the end of training."""
    found = [
        found_cells.store.tables(cell)["learned"].assign(label=cell.label, seed=cell.seed)
        for cell, _ in found_cells.finished
        if "learned" in found_cells.store.tables(cell)
    ]
    columns = ["label", "seed", "layer", "head", "alpha_hidden", "alpha"]
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)


def by_head(values: pd.DataFrame) -> pd.DataFrame:
    """Each head's weight of the inherited scores over seeds: label, layer, head, mean, spread, seeds."""
    heads = values.groupby(["label", "layer", "head"], sort=False)["alpha_hidden"]
    return heads.agg(mean="mean", spread="std", seeds="count").reset_index()


def _sentence(values: pd.DataFrame, label: str) -> list[str]:
    """Where the values went, over layers and heads, and whether seeds agree."""
    if values.empty:
        return []
    start = float(LEARNED[label]["alpha_hidden"])
    layers = values.groupby("layer")["alpha_hidden"].mean()
    seeds = values.groupby(["layer", "seed"])["alpha_hidden"].mean().groupby("layer").std().mean()
    heads = values.groupby(["layer", "seed"])["alpha_hidden"].std().mean()
    by_layer = ", ".join(f"{value:.2f}" for value in layers)
    return [
        f"{label}: alpha' starts at {start:g} and ends, layer by layer, at {by_layer} (mean over heads and seeds; "
        f"seeds differ by {seeds:.2f}, heads of a layer by {heads:.2f}); alpha ends between "
        f"{values['alpha'].min():.2f} and {values['alpha'].max():.2f}."
    ]
