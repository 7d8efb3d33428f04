"""Observer: takes tokens, queries and keys layer by layer, and gives a Diagnosis."""

from __future__ import annotations

from types import TracebackType

import pandas as pd
import torch
from torch import Tensor

from uncollapse.attention.masking import Masking
from uncollapse.attention.scores import QueryKeyScores, ScoreSource, WeightScores
from uncollapse.metrics import Spectrum, qk_spectrum

from . import attention_statistics, token_statistics
from .attention_statistics import ENTROPY_WIDTH, POSITION_BINS, AttentionStatistics
from .result import Diagnosis
from .token_statistics import TokenStatistics


class Observer:
    """Measures any model from the tensors you pass to it; `uc.diagnose` does so for whole models.

    Layers are counted from 1. Any number of batches may follow each other: sums are kept, not tensors.

    Args:
        name: name of the model in the report.
        decompositions: number of sequences, from the first on, whose ranks are computed.
        query: the query position at which signal propagation is measured, among the real tokens; the last by default.

    >>> import torch, uncollapse as uc
    >>> x, q, k = torch.randn(2, 9, 16), torch.randn(2, 4, 9, 4), torch.randn(2, 4, 9, 4)
    >>> with uc.Observer("mine") as observer:
    ...     observer.tokens(1, x)
    ...     observer.attention(1, q, k, is_causal=True)
    >>> len(observer.diagnosis.layers), len(observer.diagnosis.heads)
    (1, 4)
    """

    def __init__(self, name: str = "model", decompositions: int = 1, query: int = -1) -> None:
        self.name, self.decompositions, self.query = name, decompositions, query
        self.token_statistics: dict[int, TokenStatistics] = {}
        self.attention_statistics: dict[int, AttentionStatistics] = {}
        self.spectra: dict[int, Spectrum] = {}
        self.inherited: dict[int, Tensor] = {}  # layer -> learned weight of the inherited scores, by head
        self.visible: dict[int, float] = {}  # layer -> learned weight of the visible skip
        self.missing: dict[str, str] = {}  # what could not be measured -> why; the first verdict names it
        self.stacks: dict[str, list[int]] = {}  # where a model has several lists of blocks: name -> numbers of layers
        self.dead: dict[str, list[int]] = {}  # weights that are all zero -> layers; an embedding has none
        self.settings: dict[str, object] = {}  # what is set that bears on a collapse, such as alpha or qk_norm
        self.notes: list[str] = []
        self.names: dict[int, str] = {}  # layer -> path of its attention module, where the report is to show it
        self.sample = "data given by the caller"
        self.token_count = 0
        self._diagnosis: Diagnosis | None = None

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._diagnosis = self.finish()

    @property
    def diagnosis(self) -> Diagnosis:
        """The result; available once the `with` block has ended."""
        if self._diagnosis is None:
            raise RuntimeError("the diagnosis is available after the `with` block of the observer.")
        return self._diagnosis

    @torch.no_grad()
    def tokens(self, layer: int, x: Tensor, real: Tensor | None = None) -> None:
        """Add the tokens (B, T, M) that leave a layer's block; `real` (B, T) is False at padding."""
        if x.dim() != 3:
            raise ValueError(f"tokens must be (batch, tokens, width), got {tuple(x.shape)}.")
        if layer not in self.token_statistics:
            self.token_statistics[layer] = TokenStatistics(self.decompositions)
        with torch.autocast(x.device.type, enabled=False):  # which would take the products in half precision
            self.token_statistics[layer].add(x, real)
        if layer == min(self.token_statistics):
            self.token_count += int(x.shape[0] * x.shape[1] if real is None else real.sum())

    def attention(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        scale: float | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        real: Tensor | None = None,
    ) -> None:
        """Add a layer's queries (B, H, Q, D) and keys (B, G, K, D) as they enter the product; masks as in SDPA."""
        if q.dim() != 4 or k.dim() != 4:
            raise ValueError(
                f"q and k must be (batch, heads, tokens, size), got {tuple(q.shape)} and {tuple(k.shape)}."
            )
        if is_causal and attn_mask is not None:
            raise ValueError("attn_mask and is_causal=True cannot go together; put the causal part into attn_mask.")
        if is_causal and q.shape[2] != k.shape[2]:
            raise ValueError(
                f"is_causal=True needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}; "
                "pass the rows you mean as attn_mask instead."
            )
        if attn_mask is not None and attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise ValueError(f"attn_mask must be bool or floating point, got {attn_mask.dtype}.")
        self.scores(layer, QueryKeyScores(q, k, scale), Masking.of(attn_mask, is_causal, real))

    def attention_weights(
        self,
        layer: int,
        weights: Tensor,
        visible: Tensor | None = None,
        is_causal: bool = False,
        real: Tensor | None = None,
        parts: int = 1,
    ) -> None:
        """Add a layer's attention weights (B, H, Q, K), where its scores cannot be had; `logit_max` is then unknown.

        Rows that sum to less than one have a learned sink, which counts as one more key.
        """
        source = WeightScores(weights)
        queries, keys = weights.shape[2:]
        if is_causal:
            visible = torch.ones(queries, keys, dtype=torch.bool, device=weights.device).tril(keys - queries)
        if source.has_rest and visible is not None:
            visible = torch.nn.functional.pad(visible.expand(*visible.shape[:-1], keys), (0, 1), value=True)
        self.scores(layer, source, Masking(visible=visible, real=real), parts)
        self.attention_statistics[layer].from_weights = True

    def scores(self, layer: int, source: ScoreSource, masking: Masking, parts: int = 1) -> None:
        """Add a layer's scores; `parts`: entries of the batch that are windows of one and the same sequence."""
        if layer not in self.attention_statistics:
            self.attention_statistics[layer] = AttentionStatistics(source.shape[1], self.query)
        with torch.autocast(source.device.type, enabled=False):
            self.attention_statistics[layer].add(source, masking, parts)

    def weights(self, layer: int, query: Tensor, key: Tensor, scale: float) -> None:
        """Add a layer's W_Q and W_K (H, D, M), one matrix per head, and the scale of its scores."""
        self.spectra[layer] = qk_spectrum(query, key, scale)

    def coefficients(self, layer: int, inherited: Tensor | None, visible: float | None) -> None:
        """Add a layer's learned coefficients: the weight of the inherited scores of each head (H,), and of the skip."""
        if inherited is not None:
            self.inherited[layer] = inherited
        if visible is not None:
            self.visible[layer] = visible

    def finish(self) -> Diagnosis:
        """Turn what was measured into tables."""
        heads = self.head_table()
        layers = self.layer_table(heads)
        info = {
            "model": self.name,
            "sample": self.sample,
            "sequences": max((s.sequences for s in self.token_statistics.values()), default=0),
            "tokens": self.token_count,
            "propagation_query": self.query,
            "stacks": dict(self.stacks),
            "dead": dict(self.dead),
            "settings": dict(self.settings),
        }
        broken = self.broken_layers()
        return Diagnosis(
            layers=self._named(layers),
            heads=self._named(heads),
            histograms={"cosine": self._cosine_histogram(), "entropy": self._entropy_histogram()},
            propagation=self._propagation(),
            eigenvalues=self._eigenvalues(),
            layer_groups=self._layer_groups(),
            head_groups=self._head_groups(),
            info=info,
            missing=self._missing(),
            notes=list(self.notes),
            not_finite=min(broken) if broken else None,
        )

    def broken_layers(self) -> set[int]:
        """Layers with NaN or infinite values in their tokens, scores or weights."""
        broken = {n for n, s in self.token_statistics.items() if s.broken}
        broken |= {n for n, s in self.attention_statistics.items() if s.broken}
        return broken | {n for n, s in self.spectra.items() if not s.scale.isfinite().all()}

    def _missing(self) -> dict[str, str]:
        missing = dict(self.missing)
        if not self.attention_statistics and not any(what.startswith("attention") for what in missing):
            missing["attention"] = "no queries and keys were seen."
        if not self.token_statistics:
            missing.setdefault("tokens", "no output of a layer was seen.")
        return missing

    def _layer_groups(self) -> pd.DataFrame:
        names = token_statistics.GROUP_SUMS
        rows = [
            (layer, group, *sums)
            for layer, statistics in sorted(self.token_statistics.items())
            for group, sums in enumerate(statistics.groups.tolist())
            if sums[0] > 0
        ]
        return pd.DataFrame(rows, columns=["layer", "group", *names])

    def _head_groups(self) -> pd.DataFrame:
        names = attention_statistics.GROUP_SUMS
        rows = [
            (layer, head, group, *sums)
            for layer, statistics in sorted(self.attention_statistics.items())
            for group, heads in enumerate(statistics.groups.tolist())
            for head, sums in enumerate(heads, start=1)
            if sums[0] > 0
        ]
        return pd.DataFrame(rows, columns=["layer", "head", "group", *names])

    def layer_table(self, heads: pd.DataFrame) -> pd.DataFrame:
        """The rows of `Diagnosis.layers`; `heads` is the table of heads, whose means and extremes are part of it."""
        rows = [{"layer": n, **s.row()} for n, s in sorted(self.token_statistics.items())]
        table = pd.DataFrame(rows)
        if heads.empty or "entropy_mean" not in heads:
            return table
        by_layer = heads.groupby("layer")
        over_heads = pd.DataFrame(
            {
                "entropy_mean": by_layer["entropy_mean"].mean(),
                "entropy_min": by_layer["entropy_min"].min(),
                "entropy_normalised": by_layer["entropy_normalised"].mean(),
                "sink": by_layer["sink"].mean(),
                "mixing_bound": by_layer["mixing_bound"].max(),
                "logit_max": by_layer["logit_max"].max(),
                "gap_mean": by_layer["gap_mean"].mean(),
                "gap_max": by_layer["gap_max"].max(),
                **({"alpha_hidden": by_layer["alpha_hidden"].mean()} if self.inherited else {}),
            }
        ).reset_index()
        if self.visible:
            over_heads["alpha"] = over_heads["layer"].map(self.visible)
        return over_heads if table.empty else table.merge(over_heads, on="layer", how="outer")

    def _named(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table with a column `name`, the path of each layer's module, if there are paths."""
        if self.names and "layer" in table:
            table.insert(1, "name", table["layer"].map(self.names))
        return table

    def head_table(self) -> pd.DataFrame:
        """The rows of `Diagnosis.heads`."""
        tables = []
        for layer in sorted({*self.attention_statistics, *self.spectra}):
            columns: dict[str, Tensor] = {}
            if layer in self.attention_statistics:
                columns |= self.attention_statistics[layer].columns()
            if layer in self.spectra:
                columns |= _spectrum_columns(self.spectra[layer])
            heads = len(next(iter(columns.values())))
            if self.inherited:  # a first layer may have nothing to inherit
                columns["alpha_hidden"] = self.inherited.get(layer, torch.zeros(heads))
            numbers = {name: values.tolist() for name, values in columns.items()}
            tables.append(pd.DataFrame({"layer": layer, "head": range(1, heads + 1), **numbers}))
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["layer", "head"])

    def _cosine_histogram(self) -> pd.DataFrame:
        rows = [
            (layer, kind, h.low + index * h.width, count)
            for layer, statistics in sorted(self.token_statistics.items())
            for kind, h in (("raw", statistics.cosines.histogram), ("centred", statistics.centred.histogram))
            for index, count in enumerate(h.counts.tolist())
            if count
        ]
        return pd.DataFrame(rows, columns=["layer", "kind", "low", "count"])

    def _entropy_histogram(self) -> pd.DataFrame:
        rows = [
            (layer, head, index * ENTROPY_WIDTH, count)
            for layer, statistics in sorted(self.attention_statistics.items())
            for head, counts in enumerate(statistics.entropy_counts.tolist(), start=1)
            for index, count in enumerate(counts)
            if count
        ]
        return pd.DataFrame(rows, columns=["layer", "head", "low", "count"])

    def _propagation(self) -> pd.DataFrame:
        rows = [
            (layer, head, (index + 0.5) / POSITION_BINS, value)
            for layer, statistics in sorted(self.attention_statistics.items())
            for head, rho in enumerate(statistics.rho.tolist(), start=1)
            for index, value in enumerate(rho)
            if value == value  # NaN: no position fell into the bin
        ]
        return pd.DataFrame(rows, columns=["layer", "head", "position", "rho"])

    def _eigenvalues(self) -> pd.DataFrame:
        rows = [
            (layer, head, value.real, value.imag)
            for layer, spectrum in sorted(self.spectra.items())
            for head, values in enumerate(spectrum.eigenvalues.tolist(), start=1)
            for value in values
        ]
        return pd.DataFrame(rows, columns=["layer", "head", "real", "imag"])


def _spectrum_columns(spectrum: Spectrum) -> dict[str, Tensor]:
    return {
        "qk_trace": spectrum.trace,
        "qk_square": spectrum.square,
        "qk_scale": spectrum.scale,
        "qk_variance": spectrum.variance,
        "qk_spectral_norm": spectrum.spectral_norm,
        "xi": spectrum.xi,
        "eta": spectrum.eta,
    }
