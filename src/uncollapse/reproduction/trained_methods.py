"""The central comparison, and probes: six methods, their final numbers and curves, beside the printed ones."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .artefact import Gathered
from .cells.hopfield import OURS, PLAIN
from .figure import Result
from .printed import PRINTED
from .trained import MEASURES, against, agreement, beside, better, main_number, scaled_down, settings

PARTS = {"alpha-only": "alpha alone", "alpha-hidden-only": "alpha' alone"}
RELATIVES = ("realformer", "revit")


def result(gathered: Gathered) -> Result:
    """Table, chart and words."""
    from uncollapse.report.trained_charts import method_chart

    number = main_number(gathered)
    final = pd.DataFrame(
        [(cell.label, cell.seed, record["numbers"].get(number)) for cell, record in gathered.finished],
        columns=["label", "seed", "value"],
    ).dropna()
    verdict, sentences = _verdict(gathered, number)
    return Result(
        table=gathered.long_table(),
        chart=method_chart(
            final,
            gathered.curves("eval_step", [number]),
            gathered.labels,
            gathered.artefact.title,
            MEASURES[number].words,
        ),
        sentences=[gathered.progress(), *sentences, *_hold_out(gathered), *gathered.training(), scaled_down(gathered)],
        reading_aid="Where the dots of two methods mix, no difference is shown.",
        summary=beside(
            gathered, [number, "eval_loss", "residual_ratio", "cosine_aligned", "entropy_normalised"], PLAIN
        ),
        settings=settings(gathered),
        verdict=verdict,
        finding=" ".join(_parts(gathered, number)),
    )


def _verdict(gathered: Gathered, number: str) -> tuple[str, list[str]]:
    """Whether hopfield stands to self-attention as claimed, which of its two parts does it, and its relatives."""
    found, printed = gathered.numbers(number), PRINTED[gathered.artefact.id]
    if not {PLAIN, OURS} <= set(found):
        return gathered.lacking(), []
    gap = against(gathered, number, PLAIN, OURS)
    verdict = agreement(gap.sign, printed.claimed)
    claim = "higher" if printed.claimed > 0 else "lower"
    sentences = [
        f"Claim: {number} is {claim} with inherited scores. Printed ({printed.place}; {printed.setting}): "
        f"{printed.values[PLAIN]:g} with self-attention, {printed.values[OURS]:g} with hopfield.{printed.note} Here "
        f"the difference is {gap}: {verdict}."
    ]
    others = [label for label in RELATIVES if label in found]
    told = ", ".join(f"{label} {better(number, against(gathered, number, PLAIN, label))}" for label in others)
    relatives = [f"Relatives that the paper does not compare with: {told}."] if others else []
    return verdict, [*sentences, *_parts(gathered, number), *relatives]


def _parts(gathered: Gathered, number: str) -> list[str]:
    """Which of the two parts of hopfield does it."""
    found = gathered.numbers(number)
    if not {PLAIN, *PARTS} <= set(found):
        return []
    told = [f"{words} is {better(number, against(gathered, number, PLAIN, label))}" for label, words in PARTS.items()]
    return [f"Against self-attention, {' and '.join(told)}."]


def _hold_out(gathered: Gathered) -> list[str]:
    """What the size of a small hold-out leaves open: said of probes, whose data is small."""
    found = gathered.numbers("accuracy")
    if gathered.cells[0].base is None or gathered.cells[0].scale != "laptop" or not found:
        return []
    from uncollapse.training.images import load_images

    held_out = len(load_images(gathered.cells[0].resolved().data).valid)  # type: ignore[arg-type]
    typical = float(np.mean([np.mean(values) for values in found.values()])) / 100.0
    error = 100.0 * float(np.sqrt(typical * (1.0 - typical) / held_out))
    return [
        f"An accuracy here is measured on {held_out} digits, the same for every network: its standard error from that "
        f"alone is {error:.1f} points, which seeds of one network share."
    ]
