"""The central comparison, and probes: six methods, their final numbers and curves, beside the printed ones."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..artefact import ArtefactCells
from ..cells.hopfield import OURS, PLAIN
from ..figure import Result
from ..printed import PRINTED
from ..trained import (
    MEASURES,
    against,
    agreement,
    beside,
    better,
    main_number,
    means,
    scaled_down,
    settings,
    smallest_that_counts,
)

PARTS = {"alpha-only": "alpha alone", "alpha-hidden-only": "alpha' alone"}
RELATIVES = ("realformer", "revit")


def result(found_cells: ArtefactCells) -> Result:
    """Table, chart and words."""
    from ..charts.trained_charts import method_chart

    number = main_number(found_cells)
    final = pd.DataFrame(
        [(cell.label, cell.seed, record["numbers"].get(number)) for cell, record in found_cells.finished],
        columns=["label", "seed", "value"],
    ).dropna()
    verdict, sentences = _verdict(found_cells, number)
    return Result(
        table=found_cells.long_table(),
        chart=method_chart(
            final,
            found_cells.curves("eval_step", [number]),
            found_cells.labels,
            found_cells.artefact.title,
            MEASURES[number].words,
        ),
        sentences=[
            found_cells.progress(),
            *sentences,
            *_hold_out(found_cells),
            *found_cells.training(),
            scaled_down(found_cells),
        ],
        reading_aid="A dot is a seed. Whether two methods differ is told by the intervals in the table.",
        summary=beside(
            found_cells, [number, "eval_loss", "residual_ratio", "cosine_aligned", "entropy_normalised"], PLAIN
        ),
        settings=settings(found_cells),
        verdict=verdict,
        finding=" ".join(_parts(found_cells, number)),
    )


def _verdict(found_cells: ArtefactCells, number: str) -> tuple[str, list[str]]:
    """Whether hopfield stands to self-attention as claimed, which of its two parts does it, and its relatives."""
    found, printed = found_cells.numbers(number), PRINTED[found_cells.artefact.id]
    if not {PLAIN, OURS} <= set(found):
        return found_cells.lacking(), []
    gaps, plain = against(found_cells, number, PLAIN), means(found_cells, number)[PLAIN]
    verdict = agreement(gaps[OURS], printed.claimed, smallest_that_counts(number, plain))
    claim = "higher" if printed.claimed > 0 else "lower"
    sentences = [
        f"Claim: {number} is {claim} with inherited scores. Printed ({printed.place}; {printed.setting}): "
        f"{printed.values[PLAIN]:g} with self-attention, {printed.values[OURS]:g} with hopfield.{printed.note} Here "
        f"the difference is {gaps[OURS]}: {verdict}."
    ]
    others = [label for label in RELATIVES if label in found]
    told = ", ".join(f"{label} {better(number, gaps[label])}" for label in others)
    relatives = [f"Relatives that the paper does not compare with: {told}."] if others else []
    return verdict, [*sentences, *_parts(found_cells, number), *relatives]


def _parts(found_cells: ArtefactCells, number: str) -> list[str]:
    """Which of the two parts of hopfield does it."""
    found = found_cells.numbers(number)
    if not {PLAIN, *PARTS} <= set(found):
        return []
    gaps = against(found_cells, number, PLAIN)
    told = [f"{words} is {better(number, gaps[label])}" for label, words in PARTS.items()]
    return [f"Against self-attention, {' and '.join(told)}."]


def _hold_out(found_cells: ArtefactCells) -> list[str]:
    """What the size of a small hold-out leaves open: said of probes, whose data is small."""
    found = found_cells.numbers("accuracy")
    if found_cells.cells[0].base is None or found_cells.cells[0].budget != "laptop" or not found:
        return []
    from uncollapse.data.images import load_images

    held_out = len(load_images(found_cells.cells[0].resolved().data).valid)  # type: ignore[arg-type]
    typical = float(np.mean([np.mean(values) for values in found.values()])) / 100.0
    error = 100.0 * float(np.sqrt(typical * (1.0 - typical) / held_out))
    return [
        f"An accuracy here is measured on {held_out} digits, the same for every network: its standard error from that "
        f"alone is {error:.1f} points, which seeds of one network share."
    ]
