"""gamma W / sigma(W) with sigma(W) = u^T W v: the definition, and the same with few passes over memory on CPUs.

On a CPU such a weight costs what moving it costs, beside the products of a layer. So the fast way makes no tensor of
the size of W but the results: the weight itself, and the gradient of W,

    dW = gamma / sigma (G - <G, W> / sigma u v^T),    d gamma = <G, W> / sigma,

G being the gradient of the weight that the model uses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ELEMENTS = 1 << 17  # whose products with others stay in a core's cache


def spectral_product(matrices: Tensor, gamma: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Gamma W / sigma(W) of each matrix (parts, out, in); gamma (parts,), u (parts, out), v (parts, in)."""
    if matrices.device.type != "cpu" or torch.compiler.is_compiling():
        return plain_spectral_product(matrices, gamma, left, right)
    product: Tensor = _InFewPasses.apply(matrices, gamma, left, right)  # type: ignore[no-untyped-call]
    return product


def plain_spectral_product(matrices: Tensor, gamma: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The definition, written to be read."""
    return matrices * (gamma / sigma(matrices, left, right)).view(-1, 1, 1)


def sigma(matrices: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """u^T W v of each part (parts,)."""
    moved = (matrices @ right.unsqueeze(-1)).squeeze(-1)  # (parts, out)
    return (left * moved).sum(-1)


class _InFewPasses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrices: Tensor, gamma: Tensor, left: Tensor, right: Tensor) -> Tensor:
        ctx.sigma = found = sigma(matrices, left, right)
        ctx.save_for_backward(matrices, gamma, left, right)
        return matrices * (gamma / found).view(-1, 1, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrices, gamma, left, right = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is asked for
            product = plain_spectral_product(matrices, gamma, left, right)
            trained = [t for t in (matrices, gamma) if t.requires_grad]
            found = iter(torch.autograd.grad(product, trained, grad, create_graph=True))
            return (*(next(found) if t.requires_grad else None for t in (matrices, gamma)), None, None)
        inner = torch.stack([_inner_product(*pair) for pair in zip(grad, matrices, strict=True)]) / ctx.sigma
        result = torch.empty_like(grad)
        ratios, steps = (gamma / ctx.sigma).tolist(), (-gamma / ctx.sigma * inner).tolist()
        for part, (ratio, step) in enumerate(zip(ratios, steps, strict=True)):
            torch.addr(grad[part], left[part], right[part], beta=ratio, alpha=step, out=result[part])
        return result, inner.to(gamma.dtype), None, None


def _inner_product(one: Tensor, other: Tensor) -> Tensor:
    """The sum of products of entries of two matrices, some rows at a time."""
    if one.stride(0) < one.stride(1):  # stored as columns
        one, other = one.T, other.T
    rows = max(1, ELEMENTS // one.shape[1])
    pieces = zip(torch.split(one, rows), torch.split(other, rows), strict=True)
    return torch.stack([(a * b).sum() for a, b in pieces]).sum()
