"""AttentionOnly: the papers' network, which consists of attention layers alone.

Shapes: B batch, T tokens, M model width, H heads, D = M / H head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from .discretisation import Discretisation, Scheme, integrate
from .functional import check_backend, hopfield_attention
from .reference import masked, softmax_of_visible
from .rule import ScoreRule, Skip, Start, check_share, check_skip, chosen_rule


def _timm(linear: nn.Linear) -> None:
    nn.init.trunc_normal_(linear.weight, std=0.02)


def _xavier(linear: nn.Linear) -> None:
    nn.init.xavier_uniform_(linear.weight)


INITIALISATIONS: dict[str, Callable[[nn.Linear], None] | None] = {"timm": _timm, "xavier": _xavier, "torch": None}


class AttentionLayer(nn.Module):
    """The weights of one layer: W_Q, W_K, W_V, W_O and, before them, a LayerNorm."""

    def __init__(self, width: int, heads: int, layer_norm: bool, values: bool, output: bool, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.scale = 1.0 / math.sqrt(width // heads)
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias) if values else nn.Identity()
        self.output = nn.Linear(width, width, bias=bias) if output else nn.Identity()

    def split(self, x: Tensor) -> Tensor:
        """(B, T, M) -> (B, H, T, D)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def merge(self, out: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, M), through W_O."""
        merged: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return merged

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, H, T, D)."""
        return self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))

    def scores(self, x: Tensor) -> Tensor:
        """S(x) = scaled Q K^T: (B, H, T, T)."""
        return self.scale * self.split(self.query(x)) @ self.split(self.key(x)).mT

    def read(self, hidden: Tensor, x: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        """W_O softmax(hidden) V(x): (B, T, M)."""
        weights = softmax_of_visible(masked(hidden, attn_mask, is_causal))
        return self.merge(weights @ self.split(self.value(x)))


class AttentionOnly(nn.Module):
    """A stack of attention layers without MLPs: x_{n+1} = alpha x_n + (1 - alpha) W_O softmax(H_n) V_n.

    `forward` returns the tokens after every layer.

    Args:
        depth: number of layers N.
        width: model width M.
        heads: attention heads H; must divide `width`.
        alpha: weight of the visible skip; None is the rule's own (0.5 for hopfield, 0 for the others).
        skip: what alpha multiplies: "stream", the tokens x_n, or "normed", LayerNorm(x_n), which enters the attention.
            Without a LayerNorm they are the same. "replace" is refused: the network has no other residual.
        alpha_hidden, start, rule, backend: as in `hopfield_attention`.
        layer_norm: a LayerNorm before each attention.
        value_projection, output_projection: with W_V, with W_O; without, the identity stands in their place.
        bias: biases in the projections.
        init: "timm" (truncated normal, std 0.02), "xavier" (uniform) or "torch" (its Linear default).
        scheme: the differences that discretise (visible, hidden) state, see `Discretisation`.
        tolerance, max_iterations: of the fixed point that a backward difference of the visible state needs.

    >>> import torch, uncollapse as uc
    >>> network = uc.AttentionOnly(depth=3, width=16, heads=4, alpha=0.5, alpha_hidden=0.5)
    >>> tokens = network(torch.randn(2, 10, 16))
    >>> len(tokens), tokens[-1].shape
    (3, torch.Size([2, 10, 16]))
    """

    def __init__(
        self,
        depth: int,
        width: int,
        heads: int,
        *,
        alpha: float | None = None,
        skip: Skip = "stream",
        alpha_hidden: float = 0.5,
        start: Start = "zero",
        rule: ScoreRule | None = None,
        backend: str = "auto",
        layer_norm: bool = False,
        value_projection: bool = True,
        output_projection: bool = True,
        bias: bool = True,
        init: str = "timm",
        scheme: Scheme = ("forward", "backward"),
        tolerance: float = 1e-6,
        max_iterations: int = 200,
    ) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}.")
        if heads < 1 or width % heads:
            raise ValueError(f"heads must divide width, got width {width} and {heads} heads.")
        if init not in INITIALISATIONS:
            raise ValueError(f"init must be one of {', '.join(INITIALISATIONS)}, got {init!r}.")
        if len(scheme) != 2:
            raise ValueError(f"scheme must name two differences, for x and for h, got {scheme!r}.")
        check_skip(skip)
        if skip == "replace":
            raise ValueError(
                "skip='replace' replaces the residual of a block, and AttentionOnly has none; use 'stream', which is "
                "alpha x + (1 - alpha) attention here."
            )
        check_backend(backend)
        self.skip = skip
        self.rule = chosen_rule(rule, alpha_hidden, start)
        self.alpha = self.rule.alpha if alpha is None else alpha
        check_share("alpha", self.alpha)
        self.discretisation = Discretisation(*scheme, tolerance=tolerance, max_iterations=max_iterations)
        self.discretisation.check(self.rule, layer_norm, backend)
        self.backend = backend
        self.layers = nn.ModuleList(
            AttentionLayer(width, heads, layer_norm, value_projection, output_projection, bias) for _ in range(depth)
        )
        self._initialise(INITIALISATIONS[init])

    def _initialise(self, init: Callable[[nn.Linear], None] | None) -> None:
        if init is None:
            return
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init(module)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> list[Tensor]:
        """Tokens (B, T, M) -> the tokens after layer 1, ..., N."""
        layers = cast("list[AttentionLayer]", [*self.layers])
        if not self.discretisation.is_default:
            return integrate(
                layers,
                x,
                self.discretisation,
                self.alpha,
                self.rule,
                normed_skip=self.skip == "normed",
                attn_mask=attn_mask,
                is_causal=is_causal,
            )
        tokens, state = [], None
        for layer in layers:
            y = layer.norm(x)
            q, k, v = layer.project(y)
            out, state = hopfield_attention(
                q,
                k,
                v,
                state,
                rule=self.rule,
                attn_mask=attn_mask,
                is_causal=is_causal,
                backend=self.backend,
                depth=len(layers),
            )
            skipped = y if self.skip == "normed" else x
            x = self.alpha * skipped + (1.0 - self.alpha) * layer.merge(out)  # Eq. 53
            tokens.append(x)
        return tokens
