"""Figures 6 and 8 to 12 of the second paper: LocAteR over training, and whether its entropy is more than W_QK = 0."""

from __future__ import annotations

from .artefact import NOT_SEEN, TREND, Gathered
from .cells.localization import KAPPA_MEANS, PLAIN, ZERO
from .figure import Result
from .trained import beside, direction, rows, scaled_down, settings

STRONGEST = f"kappa-mean-{KAPPA_MEANS[-1]:g}"
SCALE_ONLY = "kappa-mean-0"
PANELS = {
    "qk_trace": "(A) mean of the spectrum: tr W_QK",
    "qk_scale": "(B) its scale: tr W_QK' W_QK",
    "entropy_mean": "(C) attention entropy in nats",
    "perplexity": "(D) held-out perplexity",
    "entropy_normalised": "entropy over its largest value",
}
CLAIMS = {"qk_scale": ("the scale shrinks", -1), "entropy_mean": ("the entropy increases", 1)}
CLAIMS |= {"perplexity": ("the perplexity improves", -1)}
COLUMNS = ("perplexity", "entropy_mean", "entropy_normalised", "entropy_without_bias", "qk_trace", "qk_scale")
VANISHED = 0.01  # share of the scale without penalty below which W_QK counts as gone
NEARLY = 0.99  # share of the largest entropy from which attention is called uniform


def result(gathered: Gathered) -> Result:
    """Table, chart and words."""
    import pandas as pd

    from uncollapse.report.trained_charts import panels_chart

    diagnosed = [name for name in PANELS if name != "perplexity"]
    curves = pd.concat([gathered.curves("step", diagnosed), gathered.curves("eval_step", ["perplexity"])])
    verdict, sentences = _verdict(gathered)
    return Result(
        table=gathered.long_table(),
        chart=panels_chart(curves, gathered.labels, PANELS, gathered.artefact.title),
        sentences=[
            gathered.progress(),
            *sentences,
            *_more_than_zero(gathered),
            *gathered.training(),
            scaled_down(gathered),
        ],
        reading_aid="plain has no penalty at all, which the paper's figures lack; kappa-mean-0 has kappa_1 only; "
        "forced-zero leaves W_QK no choice but 0. A and B have axes that are linear near 0 and logarithmic beyond.",
        summary=beside(gathered, COLUMNS),
        settings=settings(gathered),
        verdict=verdict,
    )


def _verdict(gathered: Gathered) -> tuple[str, list[str]]:
    """The three statements of the caption, kappa_2 = 1 against no penalty and against kappa_2 = 0."""
    sentences, seen = [], []
    for number, (words, expected) in CLAIMS.items():
        found = rows(gathered, number)
        if not {PLAIN, STRONGEST, SCALE_ONLY} <= set(found):
            return "pending", []
        against = {base: direction(found[base], found[STRONGEST], number) for base in (PLAIN, SCALE_ONLY)}
        seen.append(against[PLAIN] == expected)
        numbers = ", ".join(f"{label} {found[label]['mean']:.4g}" for label in (PLAIN, SCALE_ONLY, STRONGEST))
        yes = [base for base, sign in against.items() if sign == expected]
        told = f"seen against {' and '.join(yes)}" if yes else NOT_SEEN
        sentences.append(f"Claim: with a stronger kappa_2 {words}. {number}: {numbers}; {told}.")
    verdict = TREND if all(seen) else f"{TREND} in {sum(seen)} of {len(seen)} statements" if any(seen) else NOT_SEEN
    return f"{verdict} (against no penalty)", sentences


def _more_than_zero(gathered: Gathered) -> list[str]:
    """Is the higher entropy more than W_QK going to 0?"""
    entropy, bare = rows(gathered, "entropy_normalised"), rows(gathered, "entropy_without_bias")
    scale, perplexity = rows(gathered, "qk_scale"), rows(gathered, "perplexity")
    if not {PLAIN, STRONGEST} <= set(entropy) & set(bare):
        return []
    share = scale[STRONGEST]["mean"] / scale[PLAIN]["mean"]
    level, alone = entropy[STRONGEST]["mean"], bare[STRONGEST]["mean"]
    higher = direction(rows(gathered, "entropy_mean")[PLAIN], rows(gathered, "entropy_mean")[STRONGEST], "entropy_mean")
    sentences = [
        f"Is the higher entropy more than W_QK going to 0? With kappa_2 = 1 the scale tr W'W is {share:.1e} of that "
        f"without penalty, and the entropy {level:.3f} of the largest possible (uniform attention has 1); with the "
        f"query biases set to 0 it is {alone:.4f}, and without penalty {bare[PLAIN]['mean']:.3f}: "
        f"{_answer(higher, share, level, alone)}."
    ]
    if ZERO in perplexity:
        same = direction(perplexity[ZERO], perplexity[STRONGEST], "perplexity") == 0
        sentences.append(
            f"Forced to W_QK = 0 (kappa_1 = 1e6) the perplexity is {perplexity[ZERO]['mean']:.4g}, with LocAteR "
            f"{perplexity[STRONGEST]['mean']:.4g}: {'not distinguishable' if same else 'distinguishable'}."
        )
    return sentences


def _answer(higher: int, share: float, level: float, alone: float) -> str:
    if higher <= 0:
        return "there is no higher entropy to explain"
    if share >= VANISHED or alone <= NEARLY:
        return "yes, W_QK is not gone, and shapes attention"
    if level > NEARLY:
        return "no, attention is uniform"
    return (
        "no, W_QK is gone and makes no difference between keys; what is left comes from the query bias, which prefers "
        "the same keys whatever the query, and which neither the penalty nor the theory sees"
    )
