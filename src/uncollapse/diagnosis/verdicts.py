"""What the numbers of a diagnosis mean; the thresholds are in `thresholds.py`, the advice in `advice.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pandas as pd

from .advice import advice
from .certainty import Certainty, certainty
from .thresholds import (
    CHOSEN,
    GUESSING_MARGIN,
    OFFSET_COSINE,
    Thresholds,
    entropy_collapsed,
    is_sink,
    is_uniform,
    rank_collapsed,
)
from .usual import beside_usual

if TYPE_CHECKING:
    from .result import Diagnosis

Kind = Literal[
    "unreadable sample",
    "not finite",
    "dead network",
    "dead attention",
    "rank collapse",
    "entropy collapse",
    "not measured",
    "healthy",
    "common offset",
    "sink",
]
COLLAPSES = ("not finite", "dead network", "dead attention", "rank collapse", "entropy collapse")


@dataclass(frozen=True)
class Verdict:
    """One finding: what, where (layers from 1; heads as (layer, head)), a sentence with its numbers, and what helps."""

    kind: Kind
    sentence: str
    layers: tuple[int, ...] = ()
    heads: tuple[tuple[int, int], ...] = ()
    remedy: str = ""

    @property
    def is_collapse(self) -> bool:
        """Whether this is a collapse rather than a property many healthy models have."""
        return self.kind in COLLAPSES

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()


def judge(diagnosis: Diagnosis, by: Thresholds = CHOSEN) -> list[Verdict]:
    """All findings, worst first; the first one names what was not measured, and without a collapse says so."""
    sure = certainty(diagnosis, by)
    found = [
        *_not_finite(diagnosis),
        *_dead(diagnosis),
        *(alike := _rank(diagnosis, sure, by)),
        *_uniform(diagnosis, alike, by),
        *_entropy(diagnosis, sure, by),
        *_sinks(diagnosis, sure),
    ]
    gaps = gaps_of(diagnosis)
    if not any(verdict.is_collapse for verdict in found):
        found.insert(0, _nothing_found(diagnosis, gaps, sure))
    elif gaps:
        found[0] = replace(found[0], sentence=f"{found[0].sentence} Not measured: {_listed(gaps)}.")
    found = [replace(v, remedy=advice(v.kind, diagnosis.info.get("settings", {}))) for v in found]
    return [*_unreadable(diagnosis), *found]


def gaps_of(diagnosis: Diagnosis) -> dict[str, str]:
    """What a verdict would rest on and was not measured, and why; the spectrum of the weights decides nothing."""
    return {what: why for what, why in diagnosis.missing.items() if what != "spectrum"}


def layer_ranges(layers: Iterable[int]) -> str:
    """Layer numbers as text.

    >>> layer_ranges([1, 2, 3, 7])
    'Layers 1-3, 7'
    """
    numbers = sorted(layers)
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    return f"Layer{'s' if len(numbers) > 1 else ''} {text}"


def _where(diagnosis: Diagnosis, layers: Iterable[int]) -> str:
    """Layers as text, with the names of their stacks where the model has several."""
    numbers = sorted({int(n) for n in layers})
    stacks: dict[str, list[int]] = diagnosis.info.get("stacks", {})
    if len(stacks) < 2:
        return layer_ranges(numbers)
    names = [name for name, of_stack in stacks.items() if set(of_stack) & set(numbers)]
    return f"{layer_ranges(numbers)} (in {' and '.join(names)})"


def _unreadable(diagnosis: Diagnosis) -> list[Verdict]:
    loss, guessing = diagnosis.info.get("loss"), diagnosis.info.get("guessing")
    if loss is None or guessing is None or not loss > GUESSING_MARGIN * guessing:
        return []
    sentence = (
        f"The model cannot read this sample (loss {loss:.2f} a token; guessing gives {guessing:.2f}): what follows "
        "describes it on text that it was not made for, unless its weights are broken; give its own --tokenizer, or "
        "--data that it was trained for."
    )
    return [Verdict("unreadable sample", sentence)]


def _not_finite(diagnosis: Diagnosis) -> list[Verdict]:
    n = diagnosis.not_finite
    if n is None:
        return []
    where = _where(diagnosis, [n])
    sentence = f"{where}: NaN or infinite values, first seen there; sequences with them are left out of the numbers."
    return [Verdict("not finite", sentence, (n,))]


def _dead(diagnosis: Diagnosis) -> list[Verdict]:
    """Tokens that are all zero, and weights that are all zero."""
    found = []
    layers = diagnosis.layers
    dead: dict[str, list[int]] = diagnosis.info.get("dead", {})
    zero = layers[layers["norm_mean"] == 0] if "norm_mean" in layers else layers.iloc[:0]
    if not zero.empty:
        sentence = f"{_where(diagnosis, zero['layer'])}: dead network (every token is zero, 0.00 long)."
        found.append(Verdict("dead network", sentence, tuple(int(n) for n in zero["layer"])))
    for name in (name for name, of in dead.items() if not of):
        found.append(Verdict("dead network", f"Dead network: {name} has 0 entries that are not zero."))
    of_weights = {name: of for name, of in dead.items() if of and not set(of) <= set(zero.get("layer", ()))}
    if of_weights:
        numbers = tuple(sorted({n for of in of_weights.values() for n in of}))
        named = ", ".join(list(of_weights)[:3]) + (", ..." if len(of_weights) > 3 else "")
        sentence = (
            f"{_where(diagnosis, numbers)}: dead attention ({len(of_weights)} of the weight matrices in the attention "
            f"of {len(numbers)} layers are all zero: {named}); fine only at an initialisation that means it so."
        )
        found.append(Verdict("dead attention", sentence, numbers))
    return found


def _uniform(diagnosis: Diagnosis, alike: list[Verdict], by: Thresholds) -> list[Verdict]:
    """Attention that treats all keys alike, unless the tokens are alike or zero from there on, which explains it."""
    heads = diagnosis.heads
    if "spread_max" not in heads:
        return []
    explained = [layer for verdict in alike if verdict.is_collapse for layer in verdict.layers]
    layers = diagnosis.layers
    explained += list(layers.loc[layers["norm_mean"] == 0, "layer"]) if "norm_mean" in layers else []
    uniform = heads[is_uniform(heads["spread_max"], by) & ~(heads["layer"] >= min(explained, default=math.inf))]
    if uniform.empty:
        return []
    sentence = (
        f"{_where(diagnosis, uniform['layer'])}: dead attention in {_count(uniform, heads)}: every row gives all of "
        f"its keys the same weight (scores differ by at most {uniform['spread_max'].max():.0e})."
    )
    return [_of_heads("dead attention", sentence, uniform)]


def _rank(diagnosis: Diagnosis, sure: Certainty, by: Thresholds) -> list[Verdict]:
    layers = diagnosis.layers
    if "cosine_aligned" not in layers:
        return []
    layers = layers[layers["norm_mean"] != 0] if "norm_mean" in layers else layers
    aligned, centred = layers["cosine_aligned"], layers["cosine_centred_aligned"]
    collapse = rank_collapsed(aligned, layers["residual_frobenius"], centred, by)
    collapsed, offset = layers[collapse], layers[~collapse & (layers["cosine_mean"] > OFFSET_COSINE)]
    found = []
    if not collapsed.empty:
        worst = collapsed.loc[collapsed["residual_frobenius"].idxmin()]
        sentence = (
            f"{_where(diagnosis, collapsed['layer'])}: rank collapse (at worst residual ratio "
            f"{worst['residual_ratio']:.2g}; {worst['cosine_aligned']:.0%} of token pairs above 0.99, "
            f"{worst['cosine_centred_aligned']:.0%} after centring; what differs between tokens is "
            f"{worst['residual_frobenius']:.2g} of their size){sure.words('rank collapse')}."
        )
        found.append(Verdict("rank collapse", sentence, tuple(int(n) for n in collapsed["layer"])))
    if not offset.empty:
        worst = offset.loc[offset["cosine_mean"].idxmax()]
        sentence = (
            f"{_where(diagnosis, offset['layer'])}: common offset (mean cosine up to {worst['cosine_mean']:.2f}, "
            f"{worst['cosine_centred']:.2f} after centring): tokens share a large part and differ in the rest; "
            "no rank collapse."
        )
        found.append(Verdict("common offset", sentence, tuple(int(n) for n in offset["layer"])))
    return found


def _entropy(diagnosis: Diagnosis, sure: Certainty, by: Thresholds) -> list[Verdict]:
    heads = diagnosis.heads
    if "gap_mean" not in heads:
        return []
    collapsed = heads[entropy_collapsed(heads["entropy_normalised"], heads["gap_mean"], by)]
    if collapsed.empty:
        return []
    worst = collapsed.loc[collapsed["gap_mean"].idxmax()]
    sentence = (
        f"{_where(diagnosis, collapsed['layer'])}: entropy collapse in {_count(collapsed, heads)}; worst is layer "
        f"{worst['layer']:.0f}, head {worst['head']:.0f}: entropy {worst['entropy_mean']:.2g} nats "
        f"({worst['entropy_normalised']:.1%} of what its keys allow), mean gap "
        f"{beside_usual('gap_mean', worst['gap_mean'])}, largest gap {worst['gap_max']:.0f}, "
        f"{worst['sink_strongest']:.0%} of the weight on one key{sure.words('entropy collapse')}."
    )
    return [_of_heads("entropy collapse", sentence, collapsed)]


def _sinks(diagnosis: Diagnosis, sure: Certainty) -> list[Verdict]:
    heads = diagnosis.heads
    if "sink_strongest" not in heads:
        return []
    sinks = heads[is_sink(heads["sink_strongest"])]
    if sinks.empty:
        return []
    strongest = sinks.loc[sinks["sink_strongest"].idxmax()]
    which = "the first key" if strongest["sink"] > strongest["sink_strongest"] / 2 else "one key"
    sentence = (
        f"{_where(diagnosis, sinks['layer'])}: attention sink in {_count(sinks, heads)} (layer "
        f"{strongest['layer']:.0f}, head {strongest['head']:.0f} gives {strongest['sink_strongest']:.0%} of its weight "
        f"to {which}); many healthy models have them{sure.words('sink')}."
    )
    return [_of_heads("sink", sentence, sinks)]


def _count(some: pd.DataFrame, heads: pd.DataFrame) -> str:
    return f"{len(some)} of {len(heads)} heads"


def _of_heads(kind: Kind, sentence: str, heads: pd.DataFrame) -> Verdict:
    pairs = tuple((int(layer), int(head)) for layer, head in zip(heads["layer"], heads["head"], strict=True))
    return Verdict(kind, sentence, tuple(sorted({layer for layer, _ in pairs})), pairs)


def _nothing_found(diagnosis: Diagnosis, gaps: dict[str, str], sure: Certainty) -> Verdict:
    numbers, words = ", ".join(_numbers(diagnosis)), sure.words("healthy")
    if not gaps:
        return Verdict("healthy", f"No collapse found ({numbers}){words}.")
    if "attention" in gaps:
        start = f"Tokens healthy ({numbers})"
    elif "tokens" in gaps:
        start = f"Attention healthy ({numbers})"
    else:
        start = f"No collapse found in what was measured ({numbers})"
    return Verdict("not measured", f"{start}, {_listed(gaps, ' not measured')}{words}.")


def _listed(gaps: dict[str, str], verb: str = "") -> str:
    return "; ".join(f"{what}{verb}: {why.rstrip('.')}" for what, why in gaps.items())


def _numbers(diagnosis: Diagnosis) -> list[str]:
    layers, heads = diagnosis.layers, diagnosis.heads
    parts = []
    if "residual_ratio" in layers:
        parts.append(f"residual ratio {layers['residual_ratio'].min():.2f} or more")
        parts.append(f"at most {layers['cosine_aligned'].max():.1%} of token pairs aligned")
    if "entropy_normalised" in heads:
        parts.append(
            f"entropy of heads {heads['entropy_normalised'].min():.1%} to {heads['entropy_normalised'].max():.1%}"
        )
    if "gap_mean" in heads:
        parts.append(f"mean gap at most {beside_usual('gap_mean', heads['gap_mean'].max())}")
    return parts
