"""The residual of AttentionOnly, layer by layer and without cancellation.

X = R + 1 x^T is carried as its two parts, and the scores as what the softmax can see of them: row i of the scores is
r + E_i plus a constant, where r is common to all rows and E is what differs (Eq. 19 to 23 of the first paper's
appendix). Then P - 1 p, p = softmax(r), comes from expm1 with all its digits, so that R is right to a relative 1e-12
even where it is 1e-200 of the tokens; subtracting the mean from the tokens would end at 1e-16.

Shapes: B batch, T tokens, M model width, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from uncollapse.attention import AttentionOnly
from uncollapse.attention.network import AttentionLayer
from uncollapse.metrics import residual


@dataclass(frozen=True)
class HeadWeights:
    """The products of a layer's weights that act on tokens as rows: x W."""

    qk: Tensor  # W_QK,h = W_Q,h W_K,h^T: (H, M, M)
    qk_bias: Tensor  # W_K,h b_Q,h: (H, M)
    value_output: Tensor  # W_VO,h = W_V,h W_O,h: (H, M, M)
    constant: Tensor  # what the biases of W_V and W_O add to every token: (M,)
    scale: float  # 1/sqrt(D)

    @classmethod
    def of(cls, layer: AttentionLayer, like: Tensor) -> HeadWeights:
        """From a layer of AttentionOnly; an identity stands for a projection that is left out."""
        width = like.shape[-1]
        (wq, bq), (wk, _), (wv, bv), (wo, bo) = (
            _weight_and_bias(part, width, like) for part in (layer.query, layer.key, layer.value, layer.output)
        )
        queries, keys, values = (w.view(layer.heads, -1, width) for w in (wq, wk, wv))  # (H, D, M)
        outputs = wo.view(width, layer.heads, -1).permute(1, 2, 0)  # (H, D, M)
        return cls(
            qk=queries.mT @ keys,
            qk_bias=(keys.mT @ bq.view(layer.heads, -1, 1)).squeeze(-1),
            value_output=values.mT @ outputs,
            constant=wo @ bv + bo,
            scale=layer.scale,
        )


def _weight_and_bias(part: nn.Module, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    weight, bias = getattr(part, "weight", None), getattr(part, "bias", None)
    return (
        torch.eye(width, dtype=like.dtype) if weight is None else weight.detach(),
        torch.zeros(width, dtype=like.dtype) if bias is None else bias.detach(),
    )


@dataclass(frozen=True)
class LayerState:
    """What enters layer n and what leaves it."""

    number: int  # n = 1, 2, ...
    keep: float
    take: float  # H_n = keep H_{n-1} + take S_n
    weights: HeadWeights
    before: Tensor  # R entering the layer: (B, T, M)
    after: Tensor  # R leaving it: (B, T, M)
    mean: Tensor  # x leaving it: (B, M)
    inherited: Tensor  # all of A^(n-1), scaled scores; zero in layer 1: (B, H, T, T)
    inherited_interaction: Tensor  # E of A^(n-1): (B, H, T, T)
    interaction: Tensor  # E of A^(n), E~ of the appendix: (B, H, T, T)
    attention_difference: Tensor  # P - 1 p, with all its digits: (B, H, T, T)

    @property
    def span(self) -> Tensor:
        """max_jk |E_ij - E_ik| of each row: (B, H, T). The paper's proofs assume it is at most 1.256."""
        return self.interaction.amax(dim=-1) - self.interaction.amin(dim=-1)


def exact_residuals(network: AttentionOnly, x: Tensor) -> Iterator[LayerState]:
    """Go through the layers of a network with tokens x (B, T, M); every rule and alpha, no LayerNorm, no mask.

    >>> network = AttentionOnly(depth=3, width=8, heads=2, alpha=0.0).double()
    >>> x = torch.randn(1, 5, 8, dtype=torch.float64)
    >>> states = list(exact_residuals(network, x))
    >>> torch.allclose(states[0].after + states[0].mean.unsqueeze(1), network(x)[0])
    True
    """
    check_network(network)
    if x.dtype != torch.float64 or x.dim() != 3:
        raise ValueError(f"tokens must be float64 of shape (B, T, M), got {x.dtype} of shape {tuple(x.shape)}.")
    rest, mean = residual(x), x.mean(dim=1)
    heads = cast("AttentionLayer", network.layers[0]).heads
    shape = (len(x), heads, x.shape[1], x.shape[1])
    scores, interaction = (torch.zeros(shape, dtype=x.dtype) for _ in range(2))
    common = torch.zeros(shape[:3], dtype=x.dtype)  # r of the scores, (B, H, T keys)
    for number, layer in enumerate(network.layers, start=1):
        assert isinstance(layer, AttentionLayer)
        keep, take = map(float, network.rule.coefficients(number))
        weights = HeadWeights.of(layer, x)
        before, inherited, carried = rest, scores, interaction
        gain = take * weights.scale
        scores = keep * scores + take * layer.scores(rest + mean.unsqueeze(1)).detach()
        interaction = keep * interaction + gain * _per_head(rest @ weights.qk.unsqueeze(1), rest)  # Eq. 22
        direction = torch.einsum("bm,hmn->bhn", mean, weights.qk) + weights.qk_bias
        common = keep * common + gain * direction @ rest.mT  # Eq. 20
        log_p = common.log_softmax(dim=-1)
        difference = _softmax_difference(log_p, interaction)  # P - 1 p: (B, H, T, T)
        values = torch.einsum("btm,hmn->bhtn", rest, weights.value_output)
        moved = (difference @ values).sum(dim=1)  # (P - 1 p) R W_VO, summed over heads
        rest = network.alpha * rest + (1.0 - network.alpha) * residual(moved)
        shared = (
            (log_p.exp().unsqueeze(-2) @ values).sum(dim=(1, 2))
            + mean @ weights.value_output.sum(dim=0)
            + weights.constant
        )
        mean = network.alpha * mean + (1.0 - network.alpha) * (shared + moved.mean(dim=1))
        yield LayerState(number, keep, take, weights, before, rest, mean, inherited, carried, interaction, difference)


def check_network(network: AttentionOnly) -> None:
    """Raise where the bounds do not speak of a network."""
    if any(isinstance(module, nn.LayerNorm) for module in network.modules()):
        raise ValueError("the residual bounds are about networks without LayerNorm; build it with layer_norm=False.")
    if not network.discretisation.is_default:
        raise ValueError("the residual bounds are about scheme ('forward', 'backward'), the default.")


def _per_head(left: Tensor, right: Tensor) -> Tensor:
    """(H, B, T, M) or (B, H, T, M) against (B, T, M): products of rows, (B, H, T, T)."""
    return left.transpose(0, 1) @ right.mT.unsqueeze(1)


def _softmax_difference(log_p: Tensor, interaction: Tensor) -> Tensor:
    """softmax(log p + E_i) - p for each row i (B, H, T, T), without cancellation."""
    p = log_p.exp()
    # a constant along the row changes nothing; without its mean, z is of second order and no digits cancel
    centred = interaction - interaction @ p.unsqueeze(-1)
    growth = centred.expm1()
    z = growth @ p.unsqueeze(-1)  # sum_k p_k expm1(E_ik): (B, H, T, 1)
    small = p.unsqueeze(-2) * (growth - z) / (1.0 + z)
    large = (log_p.unsqueeze(-2) + centred).softmax(dim=-1) - p.unsqueeze(-2)  # expm1 of large scores overflows
    return torch.where(centred.abs().amax(dim=-1, keepdim=True) < 1.0, small, large)
