"""Appendix D: how scores are inherited and what the softmax sees of them (Eq. 14 to 23, 39); ordinary attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from uncollapse.attention import AttentionOnly, hopfield_attention
from uncollapse.attention.network import AttentionLayer
from uncollapse.metrics import residual
from uncollapse.theory import generator
from uncollapse.theory.exact_residual import HeadWeights

from ...audit.claim import ROUNDING, AuditRun, Evidence, Perturbation, Plot, becomes, judge, times
from .sources import claim


def _normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=random)


@claim(
    "hopfield-eq15-recursion",
    "Appendix D.1, Eq. 15",
    "The sum of the scaled scores of all layers, weighted by powers of alpha', obeys A = beta Q K^T/sqrt(d_k) + "
    "(alpha'/sqrt(d_k)) A of the layer before.",
    corrected="A = (beta/sqrt(d_k)) Q K^T + alpha' A of the layer before: the inherited scores are scaled already.",
    root="hopfield-scaled-twice",
    perturbation=Perturbation(lambda factor: {"inherited_scale": lambda head_size: factor}),
    changes_our_mind="A reading in which one A serves both sides of Eq. 15 for d_k other than 1.",
    consequence="Coded as printed, almost nothing is inherited: with d_k = 64 the weight of a layer's scores falls by "
    "alpha'/8 a layer. `hopfield_attention` carries scaled scores with alpha'.",
    mutation=becomes("holds", "without the second 1/sqrt(d_k)", inherited_scale=lambda head_size: 1.0),
)
def recursion(run: AuditRun, inherited_scale: Callable[[int], float] = math.sqrt) -> Evidence:
    """Six layers, d_k = 64, alpha' = 0.5: the sum of Eq. 15 against its recursion.

    Holds if sum and recursion agree to 1e-9.
    """
    head_size, depth, keep = 64, 6, 0.5
    random = generator(run.seed)
    products = [_normal(random, 8, head_size) @ _normal(random, 8, head_size).T for _ in range(depth)]
    scaled = [(1.0 - keep) * product / math.sqrt(head_size) for product in products]
    total = sum((keep ** (depth - 1 - m) * own for m, own in enumerate(scaled)), torch.zeros(8, 8, dtype=torch.float64))
    carried = torch.zeros_like(total)
    for own in scaled:
        carried = own + keep / inherited_scale(head_size) * carried
    error = ((carried - total).norm() / total.norm()).item()
    factor = keep / inherited_scale(head_size)
    rows = [
        (depth - m, (1 - keep) * base**m, name)
        for m in range(depth)
        for name, base in (("sum", keep), ("recursion", factor))
    ]
    return Evidence(
        judge(error < ROUNDING),
        f"Sum and recursion differ by {error:.1%} of the scores; a layer's scores count {factor:.3g} times as much one "
        f"layer on in the recursion, {keep:g} times in the sum.",
        {"relative difference": error, "weight kept, recursion": factor, "weight kept, sum": keep},
        Plot("scores of layer", "weight in layer 6", rows, log_y=True),
    )


@claim(
    "hopfield-eq16-23-common",
    "Appendix D.1, Eq. 16 to 23",
    "The softmax of a layer's scores is that of E + 1 r^T plus the inherited scores: what is constant over a row drops "
    "out.",
    consequence="What makes rows of attention differ is of second order in the residual; `exact_residuals` carries it.",
    perturbation=Perturbation(lambda factor: {"bias_weight": factor}),
    changes_our_mind="A layer whose attention weights differ from those of E + 1 r^T plus what is inherited.",
    mutation=becomes("fails", "without the term of the query bias, b_QK", bias_weight=0.0),
)
def common_part(run: AuditRun, bias_weight: float = 1.0) -> Evidence:
    """Random layers with biases, against the scores themselves.

    Holds if the weights agree to 1e-9.
    """
    random = generator(run.seed)
    errors = []
    for _ in range(run.pick(200, 20)):
        x, wq, wk = _normal(random, 6, 4), _normal(random, 4, 3), _normal(random, 4, 3)
        bq, bk, inherited = _normal(random, 3), _normal(random, 3), _normal(random, 6, 6)
        full = 0.5 * (x @ wq + bq) @ (x @ wk + bk).T / math.sqrt(3) + 0.5 * inherited
        rest, mean, qk = residual(x), x.mean(dim=0), wq @ wk.T
        own = 0.5 * rest @ qk @ rest.T / math.sqrt(3)
        common = 0.5 * (rest @ qk.T @ mean + bias_weight * rest @ (wk @ bq)) / math.sqrt(3)
        seen = own + common + 0.5 * inherited
        errors.append((full.softmax(dim=-1) - seen.softmax(dim=-1)).abs().max().item())
    return Evidence(
        judge(max(errors) < ROUNDING),
        f"Attention weights differ by at most {max(errors):.1e} over {len(errors)} random layers.",
        {"layers": len(errors), "largest difference": max(errors)},
    )


def _heads(layer: AttentionLayer, x: Tensor) -> Tensor:
    return _summed(layer, x, HeadWeights.of(layer, x).value_output)


def _transposed(layer: AttentionLayer, x: Tensor) -> Tensor:
    return _summed(layer, x, HeadWeights.of(layer, x).value_output.mT)


def _summed(layer: AttentionLayer, x: Tensor, value_output: Tensor) -> Tensor:
    attention = layer.scores(x).softmax(dim=-1)  # (1, H, T, T)
    return torch.einsum("bhts,bsm,hmn->btn", attention, x, value_output)


@claim(
    "hopfield-eq39-heads",
    "Appendix D.2, Eq. 39",
    "A layer of several heads is the sum over heads of P_h X W_VO,h, with W_VO,h = W_V,h W_O,h^T.",
    consequence="Bounds of one head carry over to several (Eq. 40 prints W_V where W_VO,h is meant).",
    perturbation=Perturbation(lambda factor: {"summed": times(factor, _heads)}),
    changes_our_mind="A layer whose output differs from the sum over its heads.",
    mutation=becomes("fails", "the sum with each W_VO,h transposed", summed=_transposed),
)
def several_heads(run: AuditRun, summed: Callable[[AttentionLayer, Tensor], Tensor] = _heads) -> Evidence:
    """Against a layer of AttentionOnly without biases.

    Holds if they agree to 1e-9.
    """
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(run.seed)
        network = AttentionOnly(1, 12, 3, alpha=0.0, alpha_hidden=0.0, bias=False, init="xavier").double()
        x = torch.randn(1, 7, 12, dtype=torch.float64)
        layer = network.layers[0]
        assert isinstance(layer, AttentionLayer)
        error = (summed(layer, x) - network(x)[0]).abs().max().item()
    return Evidence(
        judge(error < ROUNDING),
        f"Layer and sum over heads differ by {error:.1e}.",
        {"largest difference": error},
    )


@claim(
    "hopfield-alpha-zero-is-attention",
    "Appendix F.2 and Figure 1",
    "Setting alpha = alpha' = 0 reproduces ordinary self-attention.",
    consequence="Inherited scores can be switched on gradually from a stock model.",
    no_perturbation="It says what two zeros give, and 20 % of zero is zero.",
    changes_our_mind="An input on which the two differ by more than rounding.",
    mutation=becomes("fails", "alpha' = 0.5", alpha_hidden=0.5),
)
def is_attention(run: AuditRun, alpha_hidden: float = 0.0) -> Evidence:
    """Three layers of `hopfield_attention` against torch's own attention, in float64.

    Holds if they agree to 1e-9.
    """
    random = generator(run.seed)
    state, errors = None, []
    for _ in range(3):
        q, k, v = _normal(random, 3, 1, 2, 6, 4)
        out, state = hopfield_attention(q, k, v, state, alpha_hidden=alpha_hidden, backend="reference")
        errors.append((out - scaled_dot_product_attention(q, k, v)).abs().max().item())
    return Evidence(
        judge(max(errors) < ROUNDING),
        f"Three layers differ from torch's attention by at most {max(errors):.1e}.",
        {f"difference in layer {n}": error for n, error in enumerate(errors, start=1)},
    )


def _hopfield(layers: int) -> torch.nn.Module:
    return AttentionOnly(layers, 16, 2, alpha=0.5, alpha_hidden=0.5)


def _gated(layers: int) -> torch.nn.Module:
    network = _hopfield(layers)
    network.gate = torch.nn.Parameter(torch.zeros(layers))
    return network


@claim(
    "hopfield-no-parameters",
    "Abstract",
    "Modern Hopfield Attention adds no trained parameters.",
    consequence="A converted checkpoint loads anywhere; memory during training grows by the scores, not by weights.",
    no_perturbation="It is a count of parameters; the change adds one a layer.",
    changes_our_mind="A trained alpha or alpha' in the paper's networks.",
    mutation=becomes("fails", "with a learned gate a layer", network=_gated),
)
def no_parameters(run: AuditRun, network: Callable[[int], torch.nn.Module] = _hopfield) -> Evidence:
    """Parameters of a network with inherited scores against the same without.

    Holds if the two counts are equal.
    """
    ours = sum(p.numel() for p in network(4).parameters())
    plain = sum(p.numel() for p in AttentionOnly(4, 16, 2, alpha=0.0, alpha_hidden=0.0).parameters())
    return Evidence(
        judge(ours == plain),
        f"{ours:,} parameters against {plain:,} of plain attention.",
        {"inherited scores": ours, "self-attention": plain},
    )
