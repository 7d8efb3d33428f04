"""The trainings of the demo: one small GPT on bytes of text, in a loop as anybody writes it, with a watch on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from uncollapse.data.sample import embedded_text
from uncollapse.models.convert import convert
from uncollapse.remedies import apply
from uncollapse.watching import watch
from uncollapse.watching.detectors import DETECTORS

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

REMEDY = "qk_norm"  # what the second act tries; docs/what-helps.md has the evidence on all of them
ALPHA = ALPHA_HIDDEN = 0.5  # of the third act, in convert's own reading of the skip
HELD_OUT = 0.1  # the end of the text, which no training sees
CLIP = 1.0
BETAS = (0.9, 0.95)
WINDOW = 20  # updates whose mean loss is judged
BAD = 1.5  # times the best mean so far: the loss has gone bad


@dataclass(frozen=True)
class DemoSize:
    """The network, its text, and the rate: one that suits the network, or that grows until it is too high for it."""

    layers: int = 4
    heads: int = 4
    width: int = 64
    piece: int = 8  # bytes of text
    copies: int = 4  # of it in a sequence: to write the second, the network has to look back
    batch: int = 16
    steps: int = 400
    warmup: int = 30  # updates in which the rate rises from 0
    good: int = 200  # updates after which a rate that is to become too high begins to grow
    every: int = 10  # updates between two measurements
    learning_rate: float = 3e-3
    growth: float = 50.0  # of the rate that becomes too high, until the last update
    held_out: int = 64  # sequences

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.piece * self.copies

    def rate(self, done: int, growth: float = 1.0) -> float:
        """The learning rate after `done` updates: a warm-up, then constant, or in the end `growth` times as high."""
        grown = max(0.0, (done - self.good) / max(1, self.steps - self.good))
        return self.learning_rate * min(1.0, (done + 1) / self.warmup) * math.exp(grown * math.log(growth))


FULL = DemoSize()
QUICK = DemoSize(layers=2, heads=3, width=48, piece=4, copies=6, steps=260, warmup=20, good=150, learning_rate=6e-3)


@dataclass(frozen=True)
class TrainedRun:
    """What a watched training left."""

    rate: float  # the last
    heads: pd.DataFrame
    layers: pd.DataFrame
    updates: pd.DataFrame
    warnings: pd.DataFrame
    held_out: float  # bits per byte at the end

    @property
    def went_bad(self) -> int | None:
        """The update at which the loss went bad, or None."""
        return went_bad(self.updates["loss"])


def went_bad(losses: pd.Series) -> int | None:
    """The first update, from 1, whose mean of WINDOW losses is BAD times the best such mean before, or no number.

    >>> went_bad(pd.Series([3.0 - 0.01 * i for i in range(100)])) is None
    True
    >>> went_bad(pd.Series([2.0] * 30 + [7.0] * 30))
    35
    """
    means = losses.rolling(WINDOW, min_periods=1).mean()
    bad = (means > BAD * means.cummin().shift(fill_value=math.inf)) | ~losses.map(math.isfinite)
    bad.iloc[:WINDOW] = False
    return int(bad.to_numpy().argmax()) + 1 if bad.any() else None


def text_parts() -> tuple[Tensor, Tensor]:
    """The bytes of the embedded text: those to train on, and those held out."""
    data = torch.frombuffer(bytearray(embedded_text().encode()), dtype=torch.uint8).long()
    border = int(len(data) * (1 - HELD_OUT))
    return data[:border], data[border:]


def build(size: DemoSize) -> GPT2LMHeadModel:
    """The network, the same at every call."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=256,
        n_positions=size.length,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        bos_token_id=0,
        eos_token_id=0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    model.loss_type = "ForCausalLM"  # transformers warns if it has to guess
    return model


def train(
    size: DemoSize,
    log: Path,
    *,
    growth: float = 1.0,
    remedy: str | None = None,
    inherited: bool = False,
    on_step: Callable[[float], object] = lambda loss: None,
) -> TrainedRun:
    """Train the network for `size.steps` updates; the watch writes its numbers to `log`, too."""
    training, held_out = text_parts()
    model = build(size)
    if inherited:
        convert(model, alpha=ALPHA, alpha_hidden=ALPHA_HIDDEN)
    if remedy is not None:
        apply(model, remedy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=BETAS, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: size.rate(done, growth))
    detectors = [*DETECTORS, "forecast"]
    with watch(
        model, optimizer, every=size.every, log=log, on_warning=lambda news: None, detectors=detectors
    ) as watched:
        for ids in _batches(training, size):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            on_step(loss.item())
    tables = watched.heads, watched.layers, watched.updates, watched.warnings
    return TrainedRun(size.rate(size.steps - 1, growth), *tables, _bits(model, held_out, size))


def _batches(data: Tensor, size: DemoSize) -> Iterator[Tensor]:
    """Random pieces of the text, repeated; the same at every call."""
    chance = torch.Generator().manual_seed(0)
    for _ in range(size.steps):
        yield _repeated(data, torch.randint(len(data) - size.piece, (size.batch,), generator=chance), size)


def _repeated(data: Tensor, starts: Tensor, size: DemoSize) -> Tensor:
    """Pieces that begin at `starts` (B,), each as often as `size` says: (B, T)."""
    return torch.stack([data[start : start + size.piece] for start in starts]).repeat(1, size.copies)


@torch.no_grad()
def _bits(model: GPT2LMHeadModel, data: Tensor, size: DemoSize) -> float:
    """Held-out bits per byte."""
    ids = _repeated(data, torch.linspace(0, len(data) - size.piece, size.held_out).long(), size)
    return float(model(input_ids=ids, labels=ids).loss.item()) / math.log(2.0)
