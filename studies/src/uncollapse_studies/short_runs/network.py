"""The small LLaMA, and the text that it is trained on.

The text is read in half-bytes. To know a byte, attention has to look at the half before; so a network whose attention
fails has a higher loss after a hundred updates. On whole bytes it hardly has: pairs of bytes are all it knows by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from uncollapse.data.text import load_text

TEXT = "tinyshakespeare"
SYMBOLS = 16


@dataclass(frozen=True)
class RunSize:
    """Network, batches and length of a run; `every` is that of the watch, and of the held-out loss."""

    updates: int = 120
    every: int = 6
    batch: int = 8
    length: int = 32
    layers: int = 2
    width: int = 64
    heads: int = 4
    held_out: int = 24  # sequences


TINY = RunSize(updates=36, every=3, batch=2, length=16, layers=2, width=16, heads=2, held_out=4)


def small_llama(size: RunSize, seed: int) -> Any:
    """A LLaMA with random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=SYMBOLS,
        hidden_size=size.width,
        intermediate_size=3 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=size.length,
    )
    return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


@cache
def half_bytes(text: str, split: str) -> Tensor:
    """The half-bytes of a split, "train" or "valid": of each byte the upper one first."""
    whole = torch.frombuffer(bytearray("".join(getattr(load_text(text), split)).encode()), dtype=torch.uint8)
    return torch.stack([whole // SYMBOLS, whole % SYMBOLS], dim=1).flatten()


def training_batches(size: RunSize, seed: int, text: str = TEXT) -> Tensor:
    """The batches of a whole run, (updates, batch, length): the same for a run and its healthy twin."""
    return _pieces(half_bytes(text, "train"), (size.updates, size.batch), size.length, seed)


def held_out_batch(size: RunSize, text: str = TEXT) -> Tensor:
    """The same sequences in every run."""
    return _pieces(half_bytes(text, "valid"), (size.held_out,), size.length, 0)


def _pieces(whole: Tensor, shape: tuple[int, ...], length: int, seed: int) -> Tensor:
    starts = torch.randint(len(whole) - length, shape, generator=torch.Generator().manual_seed(seed))
    return whole[starts.unsqueeze(-1) + torch.arange(length)].long()
