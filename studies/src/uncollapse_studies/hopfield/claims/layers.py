"""Random layers of the setting of appendix D.1: one head, alpha = 0, inherited scores, rows of bounded span."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from uncollapse.metrics import residual
from uncollapse.theory import SPAN, generator

from ...audit.claim import AuditRun

ALPHA_HIDDEN = 0.5


@dataclass(frozen=True)
class ExampleLayer:
    """One layer; N tokens of width d as rows. Scores are scaled: Eq. 15 as its own sum defines them."""

    tokens: Tensor  # X: (N, d)
    rest: Tensor  # R
    qk: Tensor  # W_QK: (d, d)
    value: Tensor  # W_V: (d, d)
    inherited: Tensor  # A of the layer before, scaled: (N, N)
    head_size: int  # d_k
    common: Tensor  # r: (N,)
    own: Tensor  # E (Eq. 22): (N, N)
    scores: Tensor  # E~ = E + alpha' A: (N, N)

    @property
    def attention(self) -> Tensor:
        """P: (N, N)."""
        return (self.common + self.scores).softmax(dim=-1)

    @property
    def shared(self) -> Tensor:
        """P = softmax(r): (1, N)."""
        return self.common.softmax(dim=-1).unsqueeze(0)

    @property
    def spans(self) -> Tensor:
        """Diagonal of D~ (Eq. 26): (N, 1)."""
        return (self.scores.amax(dim=-1) - self.scores.amin(dim=-1)).unsqueeze(-1)


def made(tokens: Tensor, qk: Tensor, value: Tensor, inherited: Tensor, head_size: int) -> ExampleLayer:
    """A layer from its weights and what it inherits (Eq. 20 to 23, with scaled scores)."""
    rest, mean = residual(tokens), tokens.mean(dim=0)
    gain = (1.0 - ALPHA_HIDDEN) / math.sqrt(head_size)
    own = gain * rest @ qk @ rest.T
    common = gain * rest @ qk.T @ mean
    return ExampleLayer(tokens, rest, qk, value, inherited, head_size, common, own, own + ALPHA_HIDDEN * inherited)


def random_layers(run: AuditRun, count: int) -> Iterator[ExampleLayer]:
    """Layers whose rows of scores span at most 1.256, as the proofs assume; sizes, weights and r vary widely."""
    random = generator(run.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    for index in range(count):
        n, d = 2 + index % 15, 1 + index % 4
        strength = 10.0 ** (3.0 * torch.rand(1, generator=random).item() - 2.0)
        weak = 10.0 ** (-3.0 * torch.rand(1, generator=random).item())
        tokens = normal(n, d) ** 3 * strength + 3.0 * normal(1, d)
        inherited = normal(n, n) * (torch.rand(n, n, generator=random) < 0.5)
        layer = made(tokens, (index % 3 > 0) * weak * normal(d, d), normal(d, d), inherited, 4 ** (2 + index % 4))
        room = SPAN * torch.rand(1, generator=random).item() / max(layer.spans.max().item(), 1e-12)
        yield made(tokens, room * layer.qk, layer.value, room * inherited, layer.head_size)


def two_tokens(own: float, inherited: float) -> ExampleLayer:
    """Tokens 1 and -1 with W_V = 1, for which several right forms are equalities or nearly so.

    `own` is W_QK. The first token inherits the scores `inherited` and -`inherited`, the second none.
    """
    tokens = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    scores = inherited * torch.tensor([[1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    return made(tokens, own * torch.ones_like(tokens[:1]), torch.ones_like(tokens[:1]), scores, 64)


def one_raised(tokens: int = 600, share: float = 0.03) -> ExampleLayer:
    """One row raises one key of small attention by the whole span 1.256: where Eq. 25, in its right form, is sharp."""
    layer = alternating(tokens)
    rest = torch.full((tokens, 1), -1.0 / (tokens - 1), dtype=torch.float64)
    rest[0] = 1.0
    common = torch.full((tokens,), math.log((1.0 - share) / (tokens - 1)), dtype=torch.float64)
    common[0] = math.log(share)
    scores = torch.zeros(tokens, tokens, dtype=torch.float64)
    scores[0, 0] = SPAN
    return ExampleLayer(rest, rest, layer.qk, layer.value, scores / ALPHA_HIDDEN, 64, common, 0.0 * scores, scores)


def alternating(tokens: int, span: float = 0.6, apart: float = 30.0) -> ExampleLayer:
    """The case behind Eq. 31 and 33: all but two tokens are ignored, and rows prefer one of the two in turn."""
    layer = made(
        torch.zeros(tokens, 1, dtype=torch.float64),
        torch.zeros(1, 1, dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.float64),
        torch.zeros(tokens, tokens, dtype=torch.float64),
        64,
    )
    rest = torch.zeros(tokens, 1, dtype=torch.float64)
    rest[0], rest[1] = 1.0, -1.0
    common = torch.full((tokens,), -apart, dtype=torch.float64)
    common[:2] = 0.0
    scores = torch.zeros(tokens, tokens, dtype=torch.float64)
    scores[0::2, 0], scores[1::2, 1] = span, span
    return ExampleLayer(rest, rest, layer.qk, layer.value, scores / ALPHA_HIDDEN, 64, common, 0.0 * scores, scores)
