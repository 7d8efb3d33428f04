"""Figure 7 of the second paper: rho over updates, with LocAteR and without."""

from __future__ import annotations

import pandas as pd

from .artefact import NOT_SEEN, TREND, Gathered
from .cells.localization import PLAIN
from .figure import Result
from .trained import beside, direction, rows, scaled_down, settings
from .trained_penalty import STRONGEST

NUMBER = "localisation"


def result(gathered: Gathered) -> Result:
    """Maps, and whether positions differ more with LocAteR than without."""
    from uncollapse.report.rho_map import BINS
    from uncollapse.report.trained_charts import propagation_chart

    rho = pd.concat(
        [
            gathered.store.tables(cell)["rho"].assign(label=cell.label, seed=cell.seed)
            for cell, _ in gathered.records
            if "rho" in gathered.store.tables(cell)
        ],
        ignore_index=True,
    )
    rho = rho.groupby(["label", "step", "position"], as_index=False, sort=False)["rho"].mean()
    verdict, sentences = _verdict(gathered, rho)
    return Result(
        table=rho,
        chart=propagation_chart(rho, gathered.labels, BINS, gathered.artefact.title),
        sentences=[gathered.progress(), *sentences, *gathered.training(), scaled_down(gathered)],
        reading_aid="A column is a diagnosis of the network; horizontal stripes are positions whose signal arrives "
        "more often than that of others.",
        summary=beside(gathered, [NUMBER, "propagation_mean", "qk_trace", "qk_scale"]),
        settings=settings(gathered),
        verdict=verdict,
    )


def _verdict(gathered: Gathered, rho: pd.DataFrame) -> tuple[str, list[str]]:
    found = rows(gathered, NUMBER)
    if not {PLAIN, STRONGEST} <= set(found):
        return "pending", []
    seen = direction(found[PLAIN], found[STRONGEST], NUMBER) > 0
    last = rho[rho["step"] == rho["step"].max()].groupby("label")["rho"].agg(["min", "max"])
    spans = "; ".join(f"{label} {span['min']:.2f} to {span['max']:.2f}" for label, span in last.iterrows())
    verdict = TREND if seen else NOT_SEEN
    return verdict, [
        "Claim: with LocAteR a few tokens propagate more than the others (stripes), without it propagation is uniform. "
        f"Localisation: {STRONGEST} {found[STRONGEST]['mean']:.3g}, {PLAIN} {found[PLAIN]['mean']:.3g}: {verdict}.",
        f"Rho over the positions at the end, lowest to highest: {spans}.",
    ]
