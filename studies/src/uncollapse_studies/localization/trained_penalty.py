"""Figures 6 and 8 to 12 of the second paper: LocAteR over training, and whether its entropy is more than W_QK = 0."""

from __future__ import annotations

from uncollapse.statistics import Estimate

from ..artefact import ArtefactCells
from ..cells.localization import KAPPA_MEANS, PLAIN, ZERO
from ..figure import Result
from ..trained import against, agreement, beside, better, in_all, means, scaled_down, settings, smallest_that_counts

STRONGEST = f"kappa-mean-{KAPPA_MEANS[-1]:g}"
SCALE_ONLY = "kappa-mean-0"
PANELS = {
    "qk_trace": "(A) mean of the spectrum: tr W_QK",
    "qk_scale": "(B) its scale: tr W_QK' W_QK",
    "entropy_mean": "(C) attention entropy in nats",
    "perplexity": "(D) held-out perplexity",
    "entropy_normalised": "entropy over its largest value",
}
CLAIMS = {  # of the captions, with a stronger kappa_2: what, what it does, direction
    "qk_scale": ("scale", "shrinks", -1),
    "entropy_mean": ("entropy", "increases", 1),
    "perplexity": ("perplexity", "improves", -1),
}
COLUMNS = ("perplexity", "entropy_mean", "entropy_normalised", "entropy_without_bias", "qk_trace", "qk_scale")
VANISHED = 0.01  # share of the scale without penalty below which W_QK counts as gone
NEARLY = 0.99  # share of the largest entropy from which attention is called uniform


def result(found_cells: ArtefactCells) -> Result:
    """Table, chart and words."""
    import pandas as pd

    from ..charts.trained_charts import panels_chart

    diagnosed = [name for name in PANELS if name != "perplexity"]
    curves = pd.concat([found_cells.curves("step", diagnosed), found_cells.curves("eval_step", ["perplexity"])])
    verdict, sentences = _verdict(found_cells)
    return Result(
        table=found_cells.long_table(),
        chart=panels_chart(curves, found_cells.labels, PANELS, found_cells.artefact.title),
        sentences=[
            found_cells.progress(),
            *sentences,
            *_more_than_zero(found_cells),
            *found_cells.training(),
            scaled_down(found_cells),
        ],
        reading_aid="plain has no penalty at all, which the paper's figures lack; kappa-mean-0 has kappa_1 only"
        + "; forced-zero leaves W_QK no choice but 0" * (ZERO in found_cells.labels)
        + ". In A, 1 (dotted) is where kappa_2 draws the trace; B is logarithmic.",
        summary=beside(found_cells, COLUMNS, PLAIN),
        settings=settings(found_cells),
        verdict=verdict,
        finding=" ".join(sentences),
    )


def _verdict(found_cells: ArtefactCells) -> tuple[str, list[str]]:
    """The three statements of the caption over kappa_2; then what the penalty does as a whole, which it leaves out."""
    if not all({PLAIN, STRONGEST, SCALE_ONLY} <= set(found_cells.numbers(number)) for number in CLAIMS):
        return found_cells.lacking(), []
    verdicts, told, whole, level = [], [], [], {number: means(found_cells, number) for number in CLAIMS}
    for number, (what, does, expected) in CLAIMS.items():
        gap = against(found_cells, number, SCALE_ONLY, [STRONGEST])[STRONGEST]
        verdicts.append(agreement(gap, expected, smallest_that_counts(number, level[number][SCALE_ONLY])))
        told.append(
            f"the {what} {does}: from {level[number][SCALE_ONLY]:.4g} to {level[number][STRONGEST]:.4g}, "
            f"a difference of {gap}, {verdicts[-1]}"
        )
        how = better(number, against(found_cells, number, PLAIN)[STRONGEST])
        whole.append(f"{what} {level[number][STRONGEST]:.4g} against {level[number][PLAIN]:.4g}, {how}")
    return in_all(verdicts), [
        f"Claim (the caption, which prints curves and no numbers): with kappa_2 from 0 to 1 at kappa_1 = 100, "
        f"{'; '.join(told)}.",
        f"Against no penalty at all, which the paper's figures lack: {'; '.join(whole)}. What differs here and not "
        "from kappa_2 = 0 to 1 is the work of kappa_1.",
    ]


def _more_than_zero(found_cells: ArtefactCells) -> list[str]:
    """Is the higher entropy more than W_QK going to 0?"""
    entropy, bare = means(found_cells, "entropy_normalised"), means(found_cells, "entropy_without_bias")
    scale, perplexity = means(found_cells, "qk_scale"), means(found_cells, "perplexity")
    if not {PLAIN, STRONGEST} <= set(entropy) & set(bare):
        return []
    share = scale[STRONGEST] / scale[PLAIN]
    level, alone = entropy[STRONGEST], bare[STRONGEST]
    entropy_gap = against(found_cells, "entropy_mean", PLAIN)[STRONGEST]
    sentences = [
        f"Is the higher entropy more than W_QK going to 0? With kappa_2 = 1 the scale tr W'W is {share:.1e} of that "
        f"without penalty, and the entropy {level:.3f} of the largest possible (uniform attention has 1); with the "
        f"query biases set to 0 it is {alone:.4f}, and without penalty {bare[PLAIN]:.3f}: "
        f"{_answer(entropy_gap, share, level, alone)}."
    ]
    if {ZERO, STRONGEST} <= set(perplexity) and ZERO in entropy:
        gap = against(found_cells, "perplexity", ZERO, [STRONGEST])[STRONGEST]
        sentences.append(
            f"A control whose kappa_1 is 1e6 has a perplexity of {perplexity[ZERO]:.4g}; LocAteR's is "
            f"{perplexity[STRONGEST]:.4g}, {better('perplexity', gap)}. So strong a penalty holds back the weights "
            f"that the bias attends through, too: entropy {entropy[ZERO]:.3f} of the largest, with LocAteR {level:.3f}."
        )
    return sentences


def _answer(gap: Estimate, share: float, level: float, alone: float) -> str:
    if gap.verdict == "undecided":
        return "whether the entropy is higher at all is undecided"
    if gap.verdict == "lower":
        return "there is no higher entropy to explain"
    if alone <= NEARLY:
        return "yes, W_QK still shapes attention" + (", small as it is" if share < VANISHED else "")
    if level > NEARLY:
        return "no, attention is uniform"
    return (
        "no, W_QK is gone and makes no difference between keys; what is left comes from the query bias, which prefers "
        "the same keys whatever the query, and which neither the penalty nor the theory sees"
    )
