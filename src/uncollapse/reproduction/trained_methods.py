"""The central comparison, and probes: six methods, their final numbers and curves, beside the printed ones."""

from __future__ import annotations

import pandas as pd

from .artefact import Gathered
from .cells.hopfield import OURS, PLAIN
from .figure import Result
from .printed import PRINTED
from .trained import MEASURES, agreement, beside, compared, direction, main_number, rows, scaled_down, settings


def result(gathered: Gathered) -> Result:
    """Table, chart and words."""
    from uncollapse.report.trained_charts import method_chart

    number = main_number(gathered)
    found = rows(gathered, number)
    final = pd.DataFrame(
        [(cell.label, cell.seed, record["numbers"].get(number)) for cell, record in gathered.records],
        columns=["label", "seed", "value"],
    ).dropna()
    verdict, sentences = _verdict(gathered, number)
    if PLAIN in found:
        sentences += [compared(number, PLAIN, label, found) for label in found if label != PLAIN]
    return Result(
        table=gathered.long_table(),
        chart=method_chart(
            final,
            gathered.curves("eval_step", [number]),
            gathered.labels,
            gathered.artefact.title,
            MEASURES[number].words,
        ),
        sentences=[gathered.progress(), *sentences, *gathered.training(), scaled_down(gathered)],
        reading_aid="Where the dots of two methods mix, no difference is shown.",
        summary=beside(gathered, [number, "eval_loss", "residual_ratio", "cosine_aligned", "entropy_normalised"]),
        settings=settings(gathered),
        verdict=verdict,
    )


def _verdict(gathered: Gathered, number: str) -> tuple[str, list[str]]:
    """Whether hopfield stands to self-attention as printed, and which of its two parts does it."""
    found, printed = rows(gathered, number), PRINTED[gathered.artefact.id]
    if not {PLAIN, OURS} <= set(found):
        return "pending", []
    verdict = agreement(direction(found[PLAIN], found[OURS], number), printed.claimed)
    claim = "higher" if printed.claimed > 0 else "lower"
    sentences = [
        f"Printed ({printed.place}; {printed.setting}): {MEASURES[number].words} {printed.values[PLAIN]:g} for "
        f"self-attention, {printed.values[OURS]:g} for hopfield.{printed.note} Claim: it is "
        f"{claim} with inherited scores. Here: {verdict}."
    ]
    parts = [label for label in ("alpha-only", "alpha-hidden-only") if label in found]
    if len(parts) == 2:
        gains = {label: direction(found[PLAIN], found[label], number) for label in parts}
        better = 1 if MEASURES[number].higher else -1
        words = {better: "better", -better: "worse", 0: "not distinguishable"}
        sentences.append(
            f"Against self-attention, alpha alone is {words[gains['alpha-only']]}, alpha' alone "
            f"{words[gains['alpha-hidden-only']]}."
        )
    return verdict, sentences
