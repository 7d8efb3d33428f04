"""HopfieldAttention: a ready attention layer with alpha and alpha', for people who write their own model.

Shapes: B batch, T tokens, M model width, H query heads, G key/value heads, D = M / H head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .functional import check_backend, hopfield_attention
from .learned import PREFIX, Coefficients, LearnedShares
from .rule import ScoreRule, Start, chosen_rule
from .state import HiddenState


class HopfieldAttention(nn.Module):
    """Self-attention with inherited scores and the visible skip, with W_Q, W_K, W_V and W_O.

        H_n = alpha' H_{n-1} + (1 - alpha') Q K^T / sqrt(D)         Eq. 54
        out = alpha x + (1 - alpha) W_O softmax(H_n) V              Eq. 53

    The layer takes the state of the layer before, None in the first, and returns its own. What alpha multiplies, and
    whether the block keeps its residual, is said by the block that calls it. With y = norm(x), these are the readings
    that `uncollapse.convert` has as `skip`:

        out, state = attention(y, state, x=x); x = x + out      # "stream"
        out, state = attention(y, state);      x = x + out      # "normed": alpha multiplies y
        x, state = attention(y, state, x=x)                     # "replace": no other residual

    Args:
        width: model width M.
        heads: query heads H; must divide `width`.
        kv_heads: key/value heads G, a divisor of `heads`; as many as `heads` by default.
        alpha: weight of the visible skip; None is the rule's own: 0.5 for hopfield, 0 for the others. "learned" adds a
            parameter that starts at 0.5, "learned:0" one that starts at 0.
        alpha_hidden: alpha', the weight of the inherited scores; "learned" adds a parameter for each head.
        start, rule, backend, scores_dtype: as in `hopfield_attention`. A rule that starts with H_1 = S_1 has no
            coefficient in layer 1, so nothing can be learned there.
        causal: token i sees tokens 1 to i only.
        dropout: probability with which an attention weight is dropped in training.
        bias: biases in the four projections.
        depth: number of layers of the model, a hint for backend "auto".

    alpha = alpha_hidden = 0 is ordinary attention. `uncollapse.set_alpha(model, ...)` changes both in all layers of a
    model, and `uncollapse.parameter_groups` has a group for learned ones. For positions that act on queries and keys,
    such as rotary ones, override `project`.

    A block in the style of nanoGPT, and a stack of them:

    >>> import torch, uncollapse as uc
    >>> class Block(torch.nn.Module):
    ...     def __init__(self, width, heads):
    ...         super().__init__()
    ...         self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
    ...         self.attn = uc.HopfieldAttention(width, heads, alpha=0.5, alpha_hidden=0.5, causal=True)
    ...         self.mlp = torch.nn.Sequential(
    ...             torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
    ...         )
    ...
    ...     def forward(self, x, state):
    ...         out, state = self.attn(self.ln_1(x), state, x=x)
    ...         x = x + out
    ...         return x + self.mlp(self.ln_2(x)), state
    >>> x, state = torch.randn(2, 5, 16), None
    >>> for block in [Block(16, 4), Block(16, 4)]:
    ...     x, state = block(x, state)
    >>> x.shape, state.layer
    (torch.Size([2, 5, 16]), 2)
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        alpha: float | str | None = None,
        alpha_hidden: float | str = 0.5,
        start: Start = "zero",
        rule: ScoreRule | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        backend: str = "auto",
        depth: int | None = None,
        scores_dtype: torch.dtype | str | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or width % heads:
            raise ValueError(f"heads must divide width, got width {width} and {heads} heads.")
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"kv_heads must divide heads, got {heads} heads and {kv_heads} key/value heads.")
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"dropout must lie in [0, 1], got {dropout}.")
        check_backend(backend)
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.causal, self.dropout = causal, dropout
        self.backend, self.depth, self.scores_dtype = backend, depth, scores_dtype
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.value = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        rule = chosen_rule(rule, alpha_hidden, start)
        self.coefficients = Coefficients(rule, rule.alpha if alpha is None else alpha)
        if self.coefficients.is_learned:
            like = self.query.weight.detach()
            self.add_module(PREFIX, LearnedShares(self.coefficients, heads, like, inherits=True))

    def project(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, G, T, D) of the tokens (B, T, M); override it for rotary ones."""
        q, k, v = (
            projected.view(*y.shape[:2], -1, self.size).transpose(1, 2)
            for projected in (self.query(y), self.key(y), self.value(y))
        )
        return q, k, v

    def forward(
        self, y: Tensor, state: HiddenState | None = None, *, x: Tensor | None = None, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, HiddenState]:
        """One layer.

        Args:
            y: the tokens to attend to (B, T, M), after the block's norm if it has one.
            state: what the layer before returned; None in the first layer.
            x: the tokens that alpha multiplies (B, T, M); y if not given.
            attn_mask: as in `hopfield_attention`; a causal layer hides later tokens as well.

        Returns:
            alpha x + (1 - alpha) W_O softmax(H_n) V (B, T, M), and the state for the next layer.
        """
        if y.dim() != 3:
            raise ValueError(f"y must be (batch, tokens, width), got {tuple(y.shape)}.")
        skipped = y if x is None else x
        if skipped.shape != y.shape:
            raise ValueError(f"x must have the shape of y, {tuple(y.shape)}, got {tuple(skipped.shape)}.")
        rule, alpha = self._current()
        q, k, v = self.project(y)
        attended, state = hopfield_attention(
            q,
            k,
            v,
            state,
            rule=rule,
            attn_mask=_causal(attn_mask, y.shape[1]) if self.causal and attn_mask is not None else attn_mask,
            is_causal=self.causal and attn_mask is None,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.kv_heads != self.heads,
            backend=self.backend,
            depth=self.depth,
            scores_dtype=self.scores_dtype,
        )
        out = self.output(attended.transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, M)
        if not isinstance(alpha, Tensor) and alpha == 0:
            return out, state
        return alpha * skipped + (1.0 - alpha) * out, state

    def _current(self) -> tuple[ScoreRule, float | Tensor]:
        """The rule and alpha with what their parameters have come to."""
        learned = getattr(self, PREFIX, None)
        if isinstance(learned, LearnedShares):
            return learned.rule(), learned.alpha()
        return self.coefficients.rule, self.coefficients.alpha

    def extra_repr(self) -> str:
        """What `print(model)` shows of it."""
        rule, alpha = self.coefficients.rule, self.coefficients.alpha
        return f"heads={self.heads}, kv_heads={self.kv_heads}, rule={rule.name}, alpha={alpha}, causal={self.causal}"


def _causal(attn_mask: Tensor, length: int) -> Tensor:
    """A mask that hides later tokens as well."""
    seen = torch.ones(length, length, dtype=torch.bool, device=attn_mask.device).tril()
    if attn_mask.is_floating_point():
        return attn_mask.masked_fill(~seen, float("-inf"))
    return attn_mask & seen if attn_mask.dtype == torch.bool else attn_mask  # `hopfield_attention` refuses the rest
