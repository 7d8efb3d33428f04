"""TrainingObserver: what an Observer measures, of so few sequences that a training step can bear it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from uncollapse.attention.masking import Masking
from uncollapse.attention.scores import ScoreSource

from .attention_statistics import AttentionStatistics
from .observer import Observer


class TrainingObserver(Observer):
    """Measures the first `sequences` sequences in full, and of all others the largest logits, which are exact.

    Ranks, which need a decomposition, are left out.
    """

    def __init__(self, name: str, sequences: int) -> None:
        super().__init__(name, decompositions=0)
        self.sequences = sequences
        self.failures: dict[str, str] = {}  # what failed -> why
        self.seen: dict[int, int] = {}  # layer -> sequences whose tokens came

    def tokens(self, layer: int, x: Tensor, real: Tensor | None = None) -> None:
        with self._going_on(f"tokens of layer {layer}"):
            self._tokens(layer, x, real)

    def scores(self, layer: int, source: ScoreSource, masking: Masking, parts: int = 1) -> None:
        with self._going_on(f"attention of layer {layer}"):
            self._scores(layer, source, masking, parts)

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """A forward that trains must not end because there is no memory to measure it."""
        try:
            yield
        except Exception as error:
            self.failures[what] = " ".join(str(error).split()) or type(error).__name__

    def _tokens(self, layer: int, x: Tensor, real: Tensor | None) -> None:
        before = self.seen.get(layer, 0)
        self.seen[layer] = before + len(x)
        room = max(0, self.sequences - before)
        if room:
            super().tokens(layer, x[:room], None if real is None else real[:room])

    def _scores(self, layer: int, source: ScoreSource, masking: Masking, parts: int) -> None:
        if layer not in self.attention_statistics:
            self.attention_statistics[layer] = AttentionStatistics(source.shape[1], self.query)
        statistics, batch = self.attention_statistics[layer], source.shape[0]
        room = max(0, self.sequences - statistics.sequences) * parts
        if room >= batch:
            super().scores(layer, source, masking, parts)
            return
        if room:
            super().scores(layer, source.part(0, room), masking.part(0, room), parts)
        statistics.add_largest(source.part(room, batch), masking.part(room, batch))

    def merge(self, other: TrainingObserver) -> None:
        """Add what another process measured."""
        for layer, tokens in other.token_statistics.items():
            if layer in self.token_statistics:
                self.token_statistics[layer].merge(tokens)
            else:
                self.token_statistics[layer] = tokens
        for layer, attention in other.attention_statistics.items():
            if layer in self.attention_statistics:
                self.attention_statistics[layer].merge(attention)
            else:
                self.attention_statistics[layer] = attention
        for layer, count in other.seen.items():
            self.seen[layer] = self.seen.get(layer, 0) + count
        self.names, self.stacks = other.names | self.names, other.stacks | self.stacks
        self.missing = other.missing | self.missing
        self.notes += [note for note in other.notes if note not in self.notes]
        self.token_count += other.token_count
