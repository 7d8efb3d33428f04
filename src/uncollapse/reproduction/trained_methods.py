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


def result(gathered: Gathered) -> Result:
    """Table, chart and words."""
    from uncollapse.report.trained_charts import method_chart

    number = main_number(gathered)
    values = gathered.numbers(number)
    final = pd.DataFrame(
        [(label, seed, value) for label, found in values.items() for seed, value in enumerate(found)],
        columns=["label", "seed", "value"],
    )
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
        finding=" ".join(sentences[1:2]),
    )


def _verdict(gathered: Gathered, number: str) -> tuple[str, list[str]]:
    """Whether hopfield stands to self-attention as printed, and which of its two parts does it."""
    found, printed = gathered.numbers(number), PRINTED[gathered.artefact.id]
    if not {PLAIN, OURS} <= set(found):
        return "pending", []
    gap = against(gathered, number, PLAIN, OURS)
    verdict = agreement(gap.sign, printed.claimed)
    claim = "higher" if printed.claimed > 0 else "lower"
    sentences = [
        f"Claim: {number} is {claim} with inherited scores. Printed ({printed.place}; {printed.setting}): "
        f"{printed.values[PLAIN]:g} with self-attention, {printed.values[OURS]:g} with hopfield.{printed.note} Here "
        f"the difference is {gap}: {verdict}."
    ]
    parts = [f"{words} is {better(number, against(gathered, number, PLAIN, label))}" for label, words in PARTS.items()
             if label in found]  # fmt: skip
    if len(parts) == len(PARTS):
        sentences.append(f"Against self-attention, {' and '.join(parts)}.")
    others = [f"{label} {better(number, against(gathered, number, PLAIN, label))}" for label in ("realformer", "revit")
              if label in found]  # fmt: skip
    if others:
        sentences.append(f"Relatives that the paper does not compare with: {', '.join(others)}.")
    return verdict, sentences


def _hold_out(gathered: Gathered) -> list[str]:
    """What the size of a small hold-out leaves open: said of probes, whose data is small."""
    if gathered.cells[0].base is None or gathered.cells[0].scale != "laptop":
        return []
    from uncollapse.training.images import load_images

    held_out = len(load_images(gathered.cells[0].resolved().data).valid)  # type: ignore[arg-type]
    typical = float(np.mean([np.mean(values) for values in gathered.numbers("accuracy").values()])) / 100.0
    error = 100.0 * float(np.sqrt(typical * (1.0 - typical) / held_out))
    return [
        f"An accuracy here is measured on {held_out} digits, the same for every network: its standard error from that "
        f"alone is {error:.1f} points, which seeds of one network share."
    ]
