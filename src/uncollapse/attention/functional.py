"""hopfield_attention(): checks its arguments, picks a backend, runs one layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.overrides import handle_torch_function, has_torch_function

from ._arguments import autocast_dtype_of, check_mask, check_tensors
from ._carried import carried_attention
from ._coefficients import for_heads
from ._reversible import refuse_small, reversible_attention
from ._stacked import stacked_attention
from ._storage import stored_dtype
from .memory import choose_backend
from .reference import reference_attention
from .rule import ScoreRule, Start, chosen_rule
from .state import HiddenState, score_dtype

BACKENDS: dict[str, Callable[..., tuple[Tensor, HiddenState]]] = {
    "reference": reference_attention,
    "carried": carried_attention,
    "reversible": reversible_attention,
    "stacked": stacked_attention,
}


KEEPING = ("reference", "carried")  # the backends that can keep scores in two bytes


def hopfield_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: HiddenState | None = None,
    *,
    alpha_hidden: float | Tensor = 0.5,
    start: Start = "zero",
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    rule: ScoreRule | None = None,
    backend: str = "auto",
    window: int | None = None,
    depth: int | None = None,
    scores_dtype: torch.dtype | str | None = None,
) -> tuple[Tensor, HiddenState]:
    """One layer of attention whose scores are inherited from the layer before.

        H_n = alpha' H_{n-1} + (1 - alpha') scale Q K^T,    out = softmax(H_n) V

    The arguments that `torch.nn.functional.scaled_dot_product_attention` has mean the same here.

    Args:
        q: queries (B, H, Q, D).
        k: keys (B, G, K, D); G = H, or with `enable_gqa` a divisor of H.
        v: values (B, G, K, Dv).
        state: what the previous layer returned; None in the first layer.
        alpha_hidden: alpha', the weight of the inherited scores: a number, or a tensor of shape () or (H,), one value
            for each head, which gets its gradient.
        start: the first layer's scores: "zero" takes H_0 = 0, "raw" takes H_1 = S_1.
        attn_mask: broadcastable to (B, H, Q, K). Bool: True may be seen. Float: added to the scores.
            It acts on this layer's softmax only; the carried scores stay unmasked.
        is_causal: query i sees keys 1 .. i; needs Q = K and no `attn_mask`.
        scale: of Q K^T, 1/sqrt(D) by default; may differ from layer to layer.
        dropout_p: probability with which an attention weight is dropped.
        enable_gqa: allow fewer key/value heads than query heads.
        rule: a `ScoreRule` in place of `alpha_hidden` and `start`.
        backend: "carried" (fast; training keeps a score matrix for each layer), "reversible" (two for all layers, exact
            to 1e-4), "stacked" (none: memory linear in the sequence), "reference" (to be read), or "auto": in layer 1,
            the first of carried, reversible and stacked that fits into memory. Later layers use the backend of their
            state.
        window: with "stacked": keep only the last `window` layers, an approximation. By default layers are dropped
            only where their weight is below the rounding of the scores.
        depth: number of layers of the model, a hint for "auto".
        scores_dtype: torch.float16 (or its name) keeps the scores of "carried" in half the memory: H in float16, its
            gradient in bfloat16. None: float32, or float64 for such inputs.

    Returns:
        The output (B, H, Q, Dv) and the state to pass to the next layer. A query that sees no key gives zeros.

    >>> import torch, uncollapse as uc
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4)
    >>> out, state = uc.hopfield_attention(q, k, v, is_causal=True)  # layer 1
    >>> out, state = uc.hopfield_attention(q, k, v, state, is_causal=True)  # layer 2 inherits
    >>> out.shape, state.layer
    (torch.Size([1, 2, 5, 4]), 2)
    """
    if has_torch_function((q, k, v)):  # a mode that looks at attention calls, as it does at torch's own
        options: dict[str, Any] = {"alpha_hidden": alpha_hidden}
        options |= {"start": start, "attn_mask": attn_mask, "is_causal": is_causal}
        options |= {"scale": scale, "dropout_p": dropout_p, "enable_gqa": enable_gqa, "rule": rule, "backend": backend}
        options |= {"window": window, "depth": depth, "scores_dtype": scores_dtype}
        seen: tuple[Tensor, HiddenState]
        seen = handle_torch_function(hopfield_attention, (q, k, v), q, k, v, state, **options)
        return seen
    rule = chosen_rule(rule, alpha_hidden, start)
    if rule.learned:
        raise ValueError(
            "learned coefficients are parameters of a model: use convert or HopfieldAttention, or pass a tensor."
        )
    autocast_dtype = autocast_dtype_of(q.device.type)
    if autocast_dtype is not None:  # take the region's dtype as SDPA does; scores are carried in float32 all the same
        q, k, v = (t if t.dtype == torch.float64 else t.to(autocast_dtype) for t in (q, k, v))
    check_tensors(q, k, v, enable_gqa)
    check_mask(q, k, attn_mask, is_causal)
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p must lie in [0, 1], got {dropout_p}.")
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale}.")
    stored = _scores_dtype(scores_dtype, state, q)
    if state is not None:
        _check_state(state, q, k, stored)
    _check_continuation(backend, state, window)
    if backend == "reversible" and state is None:
        _check_reversible(rule, stored)
    if state is not None:
        backend = state.backend
    elif backend == "auto":
        backend = choose_backend(q, k, is_causal, depth, stored, can_reverse(rule))
    keep, take = rule.coefficients(1 if state is None else state.layer + 1)
    if backend != "reference":
        _refuse_forward_mode(q, k, v, attn_mask, keep, take)
    keep, take = for_heads("keep", keep, q), for_heads("take", take, q)
    more = {} if window is None else {"window": window}
    with nullcontext() if autocast_dtype is None else torch.autocast(q.device.type, enabled=False):
        return BACKENDS[backend](
            q,
            k,
            v,
            state,
            keep=keep,
            take=take,
            scale=1.0 / math.sqrt(q.shape[-1]) if scale is None else scale,
            stored=stored,
            attn_mask=attn_mask,
            is_causal=is_causal,
            dropout_p=dropout_p,
            **more,
        )


def can_reverse(rule: ScoreRule) -> bool:
    """Whether the recursion of a rule can be run backwards."""
    try:
        refuse_small(rule.coefficients(2)[0])
    except ValueError:
        return False
    return True


def _check_reversible(rule: ScoreRule, stored: torch.dtype) -> None:
    refuse_small(rule.coefficients(2)[0])
    if stored == torch.float16:
        raise ValueError(
            "backend 'reversible' needs the scores in float32, because its error grows from their rounding; "
            "scores_dtype=torch.float16 goes with backend='carried'."
        )


def _scores_dtype(asked: torch.dtype | str | None, state: HiddenState | None, q: Tensor) -> torch.dtype:
    """The dtype in which this layer keeps its scores: that of the state, if nothing else is asked for."""
    if asked is None and isinstance(state, HiddenState) and state.dtype == torch.float16:
        return torch.float16
    return stored_dtype(asked, q.dtype)


def _refuse_forward_mode(*inputs: Any) -> None:
    """Raise for inputs that carry a tangent: the tiles would drop it, and the derivative would be 0."""
    if torch.compiler.is_compiling():
        return
    tensors = (t for t in inputs if isinstance(t, Tensor))
    if any(unpack_dual(t).tangent is not None for t in tensors):  # type: ignore[no-untyped-call]
        raise RuntimeError("forward-mode derivatives need backend='reference'.")


def _check_state(state: HiddenState, q: Tensor, k: Tensor, stored: torch.dtype) -> None:
    if not isinstance(state, HiddenState):
        raise ValueError(f"state must be the HiddenState of the previous layer or None, got {type(state).__name__}.")
    expected: dict[str, Any] = {
        "shape": (*q.shape[:3], k.shape[2]),
        "dtype": stored if state.backend in KEEPING else score_dtype(q.dtype),
        "device": q.device,
    }
    for name, value in expected.items():
        if getattr(state, name) != value:
            raise ValueError(
                f"this layer needs a state of {name} {value}, got {getattr(state, name)}; "
                "pass the state of the previous layer of the same forward pass, or None in the first layer."
            )


def check_backend(backend: str) -> None:
    """Raise unless there is a backend of this name."""
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(('auto', *BACKENDS))}, got {backend!r}.")


def _check_continuation(backend: str, state: HiddenState | None, window: int | None) -> None:
    check_backend(backend)
    if state is not None and backend not in ("auto", state.backend):
        raise ValueError(
            f"the state was made by backend {state.backend!r} and cannot continue with {backend!r}; "
            "use one backend in all layers."
        )
    if window is not None:
        name = backend if state is None else state.backend
        if name != "stacked":
            raise ValueError(f"window={window} goes with backend 'stacked', not with {name!r}.")
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}.")
