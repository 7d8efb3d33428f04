"""Similarity of tokens by layer: violins of the cosines of token pairs."""

from __future__ import annotations

import pandas as pd

from .chart import Chart
from .violin import outlines, statistics, violins

COARSER = 4  # bins of the histogram that are drawn as one
CAPTION = (
    "A violin shows all pairs of tokens of a layer: above the dashed line they point the same way; "
    "a thin line there is rank collapse."
)
KINDS = {  # value of the menu: label, explanation
    "raw": ("as they are", "cosines of the tokens that leave the block"),
    "centred": ("centred", "the mean token of each sequence is taken away first: what is left without a common offset"),
}


def similarity_violins(
    cosines: pd.DataFrame,
    width: float,
    layers: pd.DataFrame,
    depth: int,
    name: str = "similarity-violins",
    aligned: float | None = None,
) -> Chart:
    """Violins by layer with mode, median and mean.

    `cosines` has layer, kind, low and count, in bins of `width`; `layers` has the exact statistics of raw cosines;
    from `aligned` on a pair counts as aligned.
    """
    marks = statistics(cosines, ["layer", "kind"], width)
    exact = layers.set_index("layer")[["cosine_mode", "cosine_median", "cosine_mean"]]
    raw = marks["kind"] == "raw"
    marks.loc[raw, ["mode", "median", "mean"]] = exact.loc[marks.loc[raw, "layer"]].to_numpy()
    shapes = outlines(cosines, ["layer", "kind"], width, COARSER)
    tables = {name: shapes, f"{name}-marks": marks}
    spec = violins(
        by="layer",
        count=depth,
        shapes=name,
        marks=f"{name}-marks",
        value=("cosine", (-1.0 if (cosines["low"] < -0.5).any() else -0.5, 1.02)),
        title={"expr": "'Cosines of token pairs' + (tokens == 'centred' ? ', centred' : '')"},
        only=["datum.kind == tokens"],
        selected="datum.layer == layer",
        threshold=aligned,
        layer=1,
        tokens="raw",
    )
    return Chart(name, spec, CAPTION, tables)
