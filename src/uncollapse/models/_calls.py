"""The calls in which PyTorch code attends, and a mode that hands those below one module to another function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from uncollapse.attention import HiddenState, hopfield_attention

from ._attention_call import SDPA, AttentionCall, as_given

HOPFIELD = hopfield_attention
MULTIHEAD = functional.multi_head_attention_forward
SOFTMAX = frozenset({functional.softmax, torch.softmax, Tensor.softmax})
PRODUCTS = frozenset(
    {
        torch.baddbmm,
        torch.bmm,
        torch.einsum,
        torch.matmul,
        Tensor.__matmul__,
        Tensor.__rmatmul__,
        Tensor.baddbmm,
        Tensor.bmm,
        Tensor.matmul,
    }
)
WITH_BIAS = frozenset({torch.baddbmm, Tensor.baddbmm})  # beta input + alpha batch1 batch2


def factors(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor] | None:
    """The two tensors of a product of activations, each of three dimensions or more; None for any other call."""
    if function not in PRODUCTS:
        return None
    values = [*args, *kwargs.values()]
    if function is torch.einsum and len(values) == 2 and isinstance(values[1], list | tuple):
        values = list(values[1])
    tensors = [value for value in values if isinstance(value, Tensor)]
    tensors = tensors[1:] if function in WITH_BIAS else tensors
    return tensors if len(tensors) == 2 and all(t.dim() >= 3 for t in tensors) else None


class AttentionCalls(TorchFunctionMode):
    """Over one attention module: its calls go to the methods below, everything else runs as it is.

    Each of them gets the arguments of the stock function and gives its result.
    """

    def sdpa(self, call: AttentionCall) -> Tensor:
        """`scaled_dot_product_attention`."""
        return as_given(call)

    def multihead(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """`multi_head_attention_forward`."""
        return MULTIHEAD(*args, **kwargs)

    def hopfield(self, *args: Any, **kwargs: Any) -> tuple[Tensor, HiddenState]:
        """`hopfield_attention`, in a model that was written with it."""
        return HOPFIELD(*args, **kwargs)

    def product(self, product: Tensor) -> Tensor:
        """The product of two activations, without what is added to it."""
        return product

    def softmax(self, scores: Tensor) -> None:
        """What enters a softmax."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is SDPA:
            return self.sdpa(AttentionCall(*args, **kwargs))
        if function is MULTIHEAD:
            return self.multihead(*args, **kwargs)
        if function is HOPFIELD:
            return self.hopfield(*args, **kwargs)
        if function in SOFTMAX:
            self.softmax(args[0] if args else kwargs["input"])
        if function is Tensor.unflatten:  # torch.compile cannot trace the method, which calls its super(), under a mode
            return torch.unflatten(*args, **kwargs)
        if factors(function, args, kwargs) is None:
            return function(*args, **kwargs)
        if function in WITH_BIAS and type(self).product is not AttentionCalls.product:  # else rounding would change
            return _with_bias(self, *args, **kwargs)
        return self.product(function(*args, **kwargs))


def _with_bias(
    calls: AttentionCalls, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """`baddbmm` in two steps: a position bias or a mask that it adds is not part of the product."""
    product = calls.product(alpha * torch.bmm(batch1, batch2))
    return product if beta == 0 else beta * input + product  # with beta = 0 the input may be uninitialised


class Multihead(NamedTuple):
    """A call of `multi_head_attention_forward`, up to where it attends."""

    call: AttentionCall
    output: tuple[Tensor, Tensor | None]  # W_O and its bias
    weights: str  # "", "mean" or "heads": which attention weights are asked for
    batched: bool

    def finished(self, attended: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The result of the call: W_O of what was attended to (B, H, Q, D), tokens first, and weights (B, H, Q, K)."""
        merged = attended.permute(2, 0, 1, 3).flatten(2)
        out = functional.linear(merged, *self.output)
        if weights is not None:
            weights = weights.mean(dim=1) if self.weights == "mean" else weights
        if not self.batched:
            out, weights = out.squeeze(1), None if weights is None else weights.squeeze(0)
        return out, weights


def multihead_call(
    query: Tensor,  # (Q, B, M), or (Q, M)
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Multihead:
    """The queries, keys and values of a call of torch's function; what is rarely used raises a ValueError."""
    for name, given in (
        ("add_bias_kv", bias_k is not None),
        ("add_zero_attn", add_zero_attn),
        ("static_k", static_k is not None),
    ):
        if given:
            raise ValueError(f"it uses {name}, which adds keys that are no tokens")
    tokens = [t if t.dim() == 3 else t.unsqueeze(1) for t in (query, key, value)]
    weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight:
        assert in_proj_weight is not None
        weights = in_proj_weight.chunk(3)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (
        unflattened(functional.linear(t, weight, bias), -1, (num_heads, -1)).permute(1, 2, 0, 3)
        for t, weight, bias in zip(tokens, weights, biases, strict=True)
    )
    causal = is_causal and attn_mask is not None and key_padding_mask is None and q.shape[2] == k.shape[2]
    mask = None if causal else _joined_mask(attn_mask, key_padding_mask, q)
    return Multihead(
        AttentionCall(q, k, v, mask, dropout_p if training else 0.0, causal),
        (out_proj_weight, out_proj_bias),
        ("mean" if average_attn_weights else "heads") if need_weights else "",
        query.dim() == 3,
    )


def unflattened(tensor: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """`tensor.unflatten(dim, sizes)`, which has no types."""
    result: Tensor = tensor.unflatten(dim, sizes)  # type: ignore[no-untyped-call]
    return result


def _joined_mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Both masks as one that is added to the scores (B, H, Q, K); their True hides a key."""
    joined = None
    for mask, padding in ((attn_mask, False), (key_padding_mask, True)):
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
        if padding:
            mask = mask.reshape(-1, 1, 1, mask.shape[-1])  # (B, 1, 1, K)
        elif mask.dim() == 3:
            mask = unflattened(mask, 0, (q.shape[0], -1))  # (B H, Q, K)
        joined = mask if joined is None else joined + mask
    return joined
