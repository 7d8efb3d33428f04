"""The content of a page as tables and text, independent of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True)
class Finding:
    """One verdict on a diagnosis."""

    kind: str
    sentence: str
    remedy: str = ""
    layers: tuple[int, ...] = ()
    heads: tuple[tuple[int, int], ...] = ()
    collapse: bool = False


@dataclass(frozen=True)
class DiagnosisContent:
    """One diagnosis: the tables of `Diagnosis`, with its findings and notes."""

    name: str
    about: str
    layers: pd.DataFrame
    heads: pd.DataFrame
    cosines: pd.DataFrame  # layer, kind, low, count
    cosine_width: float  # of a bin of `cosines`
    entropies: pd.DataFrame  # layer, head, low, count
    entropy_width: float  # of a bin of `entropies`, in nats
    propagation: pd.DataFrame
    eigenvalues: pd.DataFrame
    findings: Sequence[Finding] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)  # thresholds and what is usual, drawn in the charts
    usual: pd.DataFrame = field(default_factory=pd.DataFrame)  # number, here, usual, outside
    notes: Sequence[str] = ()

    @property
    def depth(self) -> int:
        """The number of the last layer."""
        tables = (self.layers, self.heads)
        return max((int(table["layer"].max()) for table in tables if not table.empty), default=0)

    @property
    def head_count(self) -> int:
        """The largest number of heads in a layer."""
        return 0 if self.heads.empty else int(self.heads["head"].max())

    def first_choice(self) -> tuple[int, int]:
        """Layer and head that are selected when a page opens: the worst one."""
        for finding in self.findings:
            if finding.collapse and finding.heads:
                return self._lowest(finding.heads)
        for finding in self.findings:
            if finding.collapse and finding.layers:
                return finding.layers[0], 1
        return self._lowest(None)

    def _lowest(self, among: Sequence[tuple[int, int]] | None) -> tuple[int, int]:
        heads = self.heads
        if "entropy_normalised" not in heads or heads["entropy_normalised"].isna().all():
            return among[0] if among else (1, 1)
        if among:
            pairs = set(among)
            heads = heads[[pair in pairs for pair in zip(heads["layer"], heads["head"], strict=True)]]
        worst = heads.loc[heads["entropy_normalised"].idxmin()]
        return int(worst["layer"]), int(worst["head"])
