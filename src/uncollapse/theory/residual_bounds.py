"""How fast tokens become alike in attention-only networks: the bounds of the first paper's appendix D and of Dong.

||.|| is `norm_1_inf`, R the residual of the tokens, A the scaled scores that a layer inherits (Eq. 15 without its
second 1/sqrt(d_k)). Per head h: C_1 = max_h ||W_VO,h|| ||W_QK,h||_1, C_2 = max_h ||W_VO,h|| ||A_h||_1.

Why the corrected bound is true. Row i of the attention is P_i = softmax(r + E_i), and with p = softmax(r)

    Res(P X W) = (I - 11^T/T) (P - 1p) R W .

Along P_i(t) = softmax(r + t E_i), dP_ik/dt = P_ik (E_ik - sum_l P_il E_il). The sum over k of its size is a mean
absolute deviation, at most half the span of the row, so ||P - 1p||_inf <= max |E| <= ||E||_1. The sum over i uses
P_ik (1 - P_ik) <= 1/4 and P_ik P_il <= p_k p_l e^(2ts), s the largest span: ||P - 1p||_1 <= kappa(s) ||E||_1,
kappa(s) = 1/4 + (e^(2s) - 1)/(8s). Since ||I - 11^T/T|| = 2 (1 - 1/T) and both norms are submultiplicative,

    ||Res(P X W)|| <= 2 (1 - 1/T) sqrt(kappa(s)) ||E||_1 ||R|| ||W|| .

kappa(1.256) = 1.378: the factor is 2.35, where the paper has 4. Heads add up in the norms 1 and inf separately, since
||.||_{1,inf} has no triangle inequality, and so does the skip: with f_1, f_inf the factors of the two norms,
||R'|| <= ||R|| sqrt((alpha + (1-alpha) f_1) (alpha + (1-alpha) f_inf)).

True, and far above the residual: by four orders of magnitude a layer at the width of a ViT, and from the input alone it
grows where the residual falls. For a bound that follows the residual see `contraction`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from uncollapse.attention import AttentionOnly
from uncollapse.metrics import norm_1, norm_1_inf, norm_inf

from .exact_residual import LayerState, exact_residuals
from .form import Form, check_form, check_tokens

SPAN = 1.256  # the span of a row of scores that the proofs assume; it is in none of the statements


def column_factor(span: float) -> float:
    """kappa(s) in ||P - 1p||_1 <= kappa ||E||_1 when no row of E spans more than s.

    >>> round(column_factor(SPAN), 3), column_factor(0.0)
    (1.378, 0.5)
    """
    growth = 2.0 if span < 1e-8 else math.expm1(min(2.0 * span, 700.0)) / span
    return 0.25 + growth / 8.0


def layer_factor(tokens: int, span: float = SPAN) -> float:
    """2 (1 - 1/T) sqrt(kappa(s)): 2.35 at most under the assumption, where the paper has 4.

    >>> round(layer_factor(10**6), 2)
    2.35
    """
    return 2.0 * (1.0 - 1.0 / check_tokens(tokens)) * math.sqrt(column_factor(span))


def dong_bound(residual: float, qk_norm: float, value_norm: float, head_size: int, heads: int = 1) -> float:
    """Dong et al. (2021): one layer of self-attention without skip, 4 H C_1 ||R||^3 / sqrt(d_k)."""
    cubic, _ = residual_coefficients(0.0, qk_norm, value_norm, 0.0, head_size, heads, form="as_printed")
    return cubic * residual**3


def residual_coefficients(
    alpha_hidden: float,
    qk_norm: float,
    value_norm: float,
    inherited_norm: float,
    head_size: int,
    heads: int = 1,
    tokens: int | None = None,
    form: Form = "corrected",
) -> tuple[float, float]:
    """(cubic, linear) with ||Res(layer)|| <= cubic ||R||^3 + linear ||R||, alpha = 0 (Lemma D.1; D.2 with heads > 1).

    As printed: 4 H (1 - alpha') C_1 / sqrt(d_k) and 4 H alpha' C_2 / sqrt(d_k). Corrected: 2 (1 - 1/T) sqrt(kappa) in
    place of 4 (the limit of many tokens unless `tokens` is given), and no 1/sqrt(d_k) in the second, since the scores
    that are inherited are scaled already. Both rest on the assumption that no row of scores spans more than `SPAN`.

    Args:
        alpha_hidden: alpha'.
        qk_norm: max_h ||W_QK,h||_1.
        value_norm: max_h ||W_VO,h||_{1,inf}; corrected with several heads: sqrt(max ||.||_1 max ||.||_inf).
        inherited_norm: max_h ||A_h||_1 of the scaled scores of the layer before.
        head_size: d_k.
        heads: H.
        tokens: T.
        form: which statement.

    >>> residual_coefficients(0.5, qk_norm=1.0, value_norm=1.0, inherited_norm=1.0, head_size=4, form="as_printed")
    (1.0, 1.0)
    """
    check_form(form)
    root = math.sqrt(head_size)
    if form == "as_printed":
        factor, inherited_scale = 4.0, root
    else:
        factor = layer_factor(tokens) if tokens is not None else 2.0 * math.sqrt(column_factor(SPAN))
        inherited_scale = 1.0
    cubic = factor * heads * (1.0 - alpha_hidden) * value_norm * qk_norm / root
    linear = factor * heads * alpha_hidden * value_norm * inherited_norm / inherited_scale
    return cubic, linear


def depth_bound(residual: float, cubic: float, linear: float, depth: int, form: Form = "corrected") -> float:
    """Theorem D.3: the residual after L layers, given the coefficients of one; returned as a number, infinite if so.

    R -> cubic R^3 + linear R <= max(a R^3, b R) with a = 2 cubic, b = 2 linear. Of the 2^L orders of cubic and linear
    steps with m cubic ones, a linear step followed by j cubic ones contributes b^(3^j), so the largest leaf is

        max_m  a^((3^m - 1)/2)  b^(L - m)  R^(3^m)    if b < 1,      b^(3^m (L - m))  if b >= 1 .

    As printed: b^(3^m (L - m)) always, and a = cubic, b = linear (4H in Eq. 42 where the proof's Eq. 43 has 8H).

    >>> depth_bound(0.9, cubic=0.5, linear=0.05, depth=6) > depth_bound(0.9, 0.5, 0.05, 6, form="as_printed")
    True
    """
    check_form(form)
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}.")
    double = 2.0 if form == "corrected" else 1.0
    log_a, log_b, log_r = (_log(value) for value in (double * cubic, double * linear, residual))
    leaves = []
    for m in range(depth + 1):
        linear_steps = depth - m if form == "corrected" and log_b < 0.0 else 3**m * (depth - m)
        leaves.append(_times((3**m - 1) // 2, log_a) + _times(linear_steps, log_b) + _times(3**m, log_r))
    top = max(leaves)
    return math.exp(top) if top < 700.0 else math.inf


@dataclass(frozen=True)
class LayerBounds:
    """The residual after one layer beside its bounds: the largest over the sequences of a batch of ||Res||, in order.

    `dong`, `printed` and `corrected` bound this layer from the residual that entered it; `printed_depth` and
    `corrected_depth` bound it from the network's input alone.
    """

    layer: int
    measured: Tensor  # (B,)
    dong: Tensor  # Dong's bound, which speaks of alpha = alpha' = 0
    printed: Tensor  # Lemma D.2 as printed, which speaks of alpha = 0
    corrected: Tensor  # with the skip alpha and the layer's own span: always true
    printed_depth: Tensor  # Theorem D.3 as printed
    corrected_depth: Tensor
    span: float  # the largest span of a row of scores
    assumption: float  # share of rows that span at most 1.256


def residual_bounds(network: AttentionOnly, x: Tensor) -> Iterator[LayerBounds]:
    """Measured residuals of a network on tokens x (B, T, M), float64, beside every bound, layer by layer.

    >>> network = AttentionOnly(depth=4, width=8, heads=2, alpha=0.0, init="xavier").double()
    >>> rows = list(residual_bounds(network, torch.randn(1, 6, 8, dtype=torch.float64)))
    >>> all((row.measured <= row.corrected).all() for row in rows)
    True
    """
    iterated = None
    start = None
    largest_cubic = largest_linear = torch.zeros(len(x), dtype=x.dtype)
    for state in exact_residuals(network, x):
        size = norm_1_inf(state.before)
        start = size if start is None else start
        iterated = _Iterated.begin(size, network) if iterated is None else iterated
        cubic, linear, dong = _printed_coefficients(state)
        # C_1 and C_2 of the theorem hold for every layer up to this one
        largest_cubic, largest_linear = largest_cubic.maximum(cubic), largest_linear.maximum(linear)
        yield LayerBounds(
            layer=state.number,
            measured=norm_1_inf(state.after),
            dong=dong * size**3,
            printed=cubic * size**3 + linear * size,
            corrected=size * _corrected_factor(state, network.alpha),
            printed_depth=torch.tensor(
                [
                    depth_bound(r, a, b, state.number, "as_printed")
                    for r, a, b in zip(start.tolist(), largest_cubic.tolist(), largest_linear.tolist(), strict=True)
                ],
                dtype=x.dtype,
            ),
            corrected_depth=iterated.advance(state),
            span=state.span.max().item(),
            assumption=(state.span <= SPAN).double().mean().item(),
        )


def _printed_coefficients(state: LayerState) -> tuple[Tensor, Tensor, Tensor]:
    """Cubic and linear coefficients of Lemma D.2 as printed and Dong's cubic one: (B,) each."""
    weights = state.weights
    values, queries = norm_1_inf(weights.value_output), norm_1(weights.qk)  # (H,)
    factor = 4.0 * len(values) * weights.scale
    first = factor * (values * queries).max()  # C_1 is a maximum of products
    second = factor * state.keep * (values * norm_1(state.inherited)).amax(dim=-1)
    return (state.take * first).expand(len(second)), second, first.expand(len(second))


def _corrected_factor(state: LayerState, alpha: float) -> Tensor:
    """||R'|| / ||R|| is at most this, from the layer's own scores: (B,)."""
    spans = state.span.amax(dim=-1)  # (B, H)
    values = state.weights.value_output
    return skip_factor(*attention_factors(norm_1(state.interaction), spans, values, state.before.shape[1]), alpha)


def attention_factors(
    interaction_norm: Tensor, spans: Tensor, value_output: Tensor, tokens: int
) -> tuple[Tensor, Tensor]:
    """f_1 and f_inf of the attention, heads added up: (B,) each, from ||E||_1 and the spans (B, H), and W_VO (H, M, M).

    A stochastic P has ||P||_inf = 1 and ||P||_1 <= T, which caps what large scores can do.
    """
    kappa = 0.25 + torch.where(spans < 1e-8, 2.0, (2.0 * spans).clamp(max=700.0).expm1() / spans) / 8.0
    columns = (kappa * interaction_norm).clamp(max=float(tokens))
    rows = interaction_norm.clamp(max=1.0)
    centring = 2.0 * (1.0 - 1.0 / tokens)
    return (
        centring * columns @ norm_1(value_output),
        centring * rows @ norm_inf(value_output),
    )


def skip_factor(first: Tensor, second: Tensor, alpha: float) -> Tensor:
    """The extension to alpha > 0: sqrt((alpha + (1-alpha) f_1) (alpha + (1-alpha) f_inf))."""
    return ((alpha + (1.0 - alpha) * first) * (alpha + (1.0 - alpha) * second)).sqrt()


class _Iterated:
    """The corrected bound from the input alone: ||E_n||_1 <= keep ||E_{n-1}||_1 + take ||W_QK||_1 ||R||^2/sqrt(d_k)."""

    def __init__(self, size: Tensor, interaction: Tensor, alpha: float) -> None:
        self.size, self.interaction, self.alpha = size, interaction, alpha  # (B,), (B, H)

    @classmethod
    def begin(cls, size: Tensor, network: AttentionOnly) -> _Iterated:
        heads: int = network.layers[0].heads  # type: ignore[assignment]
        return cls(size, torch.zeros(len(size), heads, dtype=size.dtype), network.alpha)

    def advance(self, state: LayerState) -> Tensor:
        own = state.weights.scale * norm_1(state.weights.qk) * self.size.unsqueeze(-1) ** 2
        self.interaction = state.keep * self.interaction + state.take * own
        spans = 2.0 * self.interaction  # a span is at most twice the largest entry
        factors = attention_factors(self.interaction, spans, state.weights.value_output, state.before.shape[1])
        self.size = self.size * skip_factor(*factors, self.alpha)
        return self.size


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


def _times(exponent: int, log_value: float) -> float:
    """Exponent * log(value), where value^0 = 1 also for value = 0."""
    return exponent * log_value if exponent else 0.0
