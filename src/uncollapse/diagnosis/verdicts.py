"""What the numbers of a diagnosis mean. Each threshold is a constant with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pandas as pd

if TYPE_CHECKING:
    from .result import Diagnosis

Kind = Literal["not finite", "rank collapse", "common offset", "entropy collapse", "sink", "healthy"]


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
        return self.kind in ("not finite", "rank collapse", "entropy collapse")

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()


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


# Rank collapse: most pairs of tokens are aligned, and what is left without their mean is negligible or aligned as well.
# The raw measure alone is fooled by a common offset, which full-rank tokens can have; trained models measured in
# docs/diagnose.md have fewer than 1 % aligned pairs and residuals above 70 % of their size.
ALIGNED_SHARE = 0.5
RESIDUAL_SHARE = 0.05
# Common offset: tokens look alike only because of a part that all of them share.
OFFSET_COSINE = 0.9
# Entropy collapse: the rows of a head use next to nothing of the entropy they could have, and not because each row has
# found its own neighbour, as healthy positional heads do: one key takes most of the weight of all rows, or the scores
# are so large that float32's softmax saturates (e^-80 is 1e-35) and passes no gradient.
LOW_ENTROPY = 0.05
STRONGEST_SHARE = 0.5
SATURATED_LOGIT = 80.0
# Sink: a head gives most of its weight to the first visible key. Many trained models do; it is not a collapse.
SINK_SHARE = 0.5

RANK_REMEDY = (
    "What is known to help: a visible skip (uncollapse.convert with alpha=0.5) keeps tokens apart at initialisation, "
    "inherited scores without it do not (shown by uncollapse demo); stronger residual branches: untested here."
)
ENTROPY_REMEDY = "What is known to help: a smaller learning rate, QK-norm, sigma-reparam, LocAteR: all untested here."


def judge(diagnosis: Diagnosis) -> list[Verdict]:
    """All findings, worst first; without a collapse, the first one says so."""
    found = [*_not_finite(diagnosis), *_rank(diagnosis.layers), *_entropy(diagnosis.heads)]
    if not any(verdict.is_collapse for verdict in found):
        found.insert(0, _healthy(diagnosis))
    return found


def _not_finite(diagnosis: Diagnosis) -> list[Verdict]:
    n = diagnosis.not_finite
    if n is None:
        return []
    sentence = f"Layer {n}: NaN or infinite values, first seen there; sequences with them are left out of the numbers."
    return [Verdict("not finite", sentence, (n,))]


def _rank(layers: pd.DataFrame) -> list[Verdict]:
    if "cosine_aligned" not in layers:
        return []
    aligned = layers["cosine_aligned"] > ALIGNED_SHARE
    degenerate = (layers["residual_frobenius"] < RESIDUAL_SHARE) | (layers["cosine_centred_aligned"] > ALIGNED_SHARE)
    collapsed, offset = (
        layers[aligned & degenerate],
        layers[~(aligned & degenerate) & (layers["cosine_mean"] > OFFSET_COSINE)],
    )
    found = []
    if not collapsed.empty:
        worst = collapsed.loc[collapsed["residual_frobenius"].idxmin()]
        sentence = (
            f"{layer_ranges(collapsed['layer'])}: rank collapse (at worst residual ratio "
            f"{worst['residual_ratio']:.2g}; {worst['cosine_aligned']:.0%} of token pairs above 0.99, "
            f"{worst['cosine_centred_aligned']:.0%} after centring; what differs between tokens is "
            f"{worst['residual_frobenius']:.2g} of their size)."
        )
        found.append(Verdict("rank collapse", sentence, tuple(collapsed["layer"]), remedy=RANK_REMEDY))
    if not offset.empty:
        worst = offset.loc[offset["cosine_mean"].idxmax()]
        sentence = (
            f"{layer_ranges(offset['layer'])}: common offset (mean cosine up to {worst['cosine_mean']:.2f}, "
            f"{worst['cosine_centred']:.2f} after centring): tokens share a large part and differ in the rest; "
            "no rank collapse."
        )
        found.append(Verdict("common offset", sentence, tuple(offset["layer"])))
    return found


def _entropy(heads: pd.DataFrame) -> list[Verdict]:
    if "entropy_normalised" not in heads:
        return []
    sink = heads["sink"] > SINK_SHARE
    saturated = heads["logit_max"] > SATURATED_LOGIT
    staring = (heads["sink_strongest"] > STRONGEST_SHARE) & ~sink
    collapsed = heads[(heads["entropy_normalised"] < LOW_ENTROPY) & (staring | saturated)]
    found = []
    if not collapsed.empty:
        worst = collapsed.loc[collapsed["entropy_normalised"].idxmin()]
        sentence = (
            f"{layer_ranges(set(collapsed['layer']))}: entropy collapse in {_count(collapsed, heads)}; worst is layer "
            f"{worst['layer']:.0f}, head {worst['head']:.0f}: entropy {worst['entropy_mean']:.2g} nats "
            f"({worst['entropy_normalised']:.1%} of what its keys allow), largest logit {worst['logit_max']:.0f}, "
            f"{worst['sink_strongest']:.0%} of the weight on one key."
        )
        found.append(_of_heads("entropy collapse", sentence, collapsed, ENTROPY_REMEDY))
    sinks = heads[sink]
    if not sinks.empty:
        strongest = sinks.loc[sinks["sink"].idxmax()]
        sentence = (
            f"{layer_ranges(set(sinks['layer']))}: attention sink in {_count(sinks, heads)} (layer "
            f"{strongest['layer']:.0f}, head {strongest['head']:.0f} gives {strongest['sink']:.0%} of its weight to "
            "the first key); many healthy models have them."
        )
        found.append(_of_heads("sink", sentence, sinks))
    return found


def _count(some: pd.DataFrame, heads: pd.DataFrame) -> str:
    return f"{len(some)} of {len(heads)} heads"


def _of_heads(kind: Kind, sentence: str, heads: pd.DataFrame, remedy: str = "") -> Verdict:
    pairs = tuple((int(layer), int(head)) for layer, head in zip(heads["layer"], heads["head"], strict=True))
    return Verdict(kind, sentence, tuple(sorted({layer for layer, _ in pairs})), pairs, remedy)


def _healthy(diagnosis: Diagnosis) -> Verdict:
    layers, heads = diagnosis.layers, diagnosis.heads
    parts = []
    if "residual_ratio" in layers:
        parts.append(f"residual ratio {layers['residual_ratio'].min():.2f} or more")
        parts.append(f"at most {layers['cosine_aligned'].max():.1%} of token pairs aligned")
    if "entropy_normalised" in heads:
        parts.append(
            f"entropy of heads {heads['entropy_normalised'].min():.1%} to {heads['entropy_normalised'].max():.1%}"
        )
        parts.append(f"largest logit {heads['logit_max'].max():.0f}")
    return Verdict("healthy", f"No collapse found ({', '.join(parts)}).")
