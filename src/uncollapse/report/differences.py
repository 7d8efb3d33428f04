"""Sentences on how reports differ, with their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from .chart import SMALLEST
from .content import DiagnosisContent

FACTOR, STEP = 1.1, 0.02  # smaller ratios and differences count as equal
MEASURES = {  # column: name, whether values are compared by their ratio rather than their difference
    "residual_ratio": ("residual ratio", True),
    "cosine_mean": ("mean cosine of tokens", False),
    "entropy_normalised": ("normalised entropy", False),
    "logit_max": ("largest score", True),
}


def differences(contents: Sequence[DiagnosisContent]) -> list[str]:
    """Differences in depth and verdicts, and for each measure the layer in which the reports differ most."""
    return [*_depths(contents), *_verdicts(contents), *_measures(contents)]


def number(value: float) -> str:
    """A number with two significant digits, or without decimals from 100 on.

    >>> number(3.3e-16), number(0.0493), number(184.2), number(0.0)
    ('3.3e-16', '0.049', '184', '0')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits, _, exponent = f"{value:.2g}".partition("e")
    return f"{digits}e{int(exponent)}" if exponent else digits


def _depths(contents: Sequence[DiagnosisContent]) -> list[str]:
    depths = [content.depth for content in contents]
    if len(set(depths)) == 1:
        return []
    listed = _against([f"{depth} layers ({content.name})" for depth, content in zip(depths, contents, strict=True)])
    return [f"Depth: {listed}; layers are compared by number, from 1 to {min(depths)}."]


def _verdicts(contents: Sequence[DiagnosisContent]) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for content in contents:
        for finding in content.findings:
            if finding.collapse:
                first = f"layer {min(finding.layers, default=1)}"
                where = first if len(finding.layers) == 1 else f"{len(finding.layers)} layers, first in {first}"
                kinds.setdefault(finding.kind, []).append(f"{content.name} ({where})")
    sentences = []
    for kind, found in kinds.items():
        without = [c.name for c in contents if all(f.kind != kind for f in c.findings)]
        absent = f"; not found in {_and(without)}" if without else "; found in all of them"
        sentences.append(f"{kind.capitalize()}: {_and(found)}{absent}.")
    return sentences or ["Collapse: found in none of them."]


def _measures(contents: Sequence[DiagnosisContent]) -> list[str]:
    sentences = []
    for column, (words, factor) in MEASURES.items():
        if not all(column in content.layers for content in contents):
            continue
        values = pd.concat([c.layers.set_index("layer")[column] for c in contents], axis=1, join="inner").dropna()
        if values.empty:
            continue
        low, high = values.min(axis=1), values.max(axis=1)
        gaps = high.clip(lower=SMALLEST) / low.clip(lower=SMALLEST) if factor else high - low
        layer = int(gaps.idxmax())
        if gaps[layer] < (FACTOR if factor else STEP):
            most = f"{gaps[layer] - 1:.0%}" if factor else number(gaps[layer])
            sentences.append(f"{words.capitalize()}: alike in every layer (at most {most} apart).")
            continue
        shown = [f"{number(value)} ({c.name})" for value, c in zip(values.loc[layer], contents, strict=True)]
        orders = math.log10(gaps[layer]) if factor else 0.0
        apart = f", {orders:.0f} powers of ten apart" if orders >= 2 else ""
        sentences.append(f"Layer {layer}: {words} {_against(shown)}{apart}.")
    return sentences


def _against(parts: Sequence[str]) -> str:
    return " against ".join(parts)


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
