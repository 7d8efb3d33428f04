"""Starts the kernels on tensors of one layer: `carried` and `stacked`, forward and backward.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size, L layers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from .._dropout import survivor_factor
from . import carried_kernels, stacked_kernels
from .configs import Config, Tiles, config, generation, precision

if TYPE_CHECKING:
    from .._carried_tiles import CarriedSettings
    from .._stacked_tiles import StackedSettings
    from .._strips import SoftmaxSettings
    from .._tiling import ScoreLayout

if triton.knobs.runtime.interpret:
    from .interpreter import repair

    repair()

SMALLEST_KEEP = 2.0**-20  # below, keep * gradient would lose digits to underflow that dQ needs
SCRATCH_BYTES = 1 << 26  # for the score gradient of a few heads of `stacked`; one group of heads in any case


def carried_forward(
    q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, hidden: Tensor, settings: CarriedSettings
) -> tuple[Tensor, Tensor]:
    """Write H_n into `hidden`, which may be `old` itself; the output and each row's log-sum-exp (B, H, Q)."""
    q, k, v = (_rows_contiguous(t) for t in (q, k, v))
    row, softmax = _row(q, v), settings.softmax
    tiles = row.forward
    out = _empty_like(q, v.shape[3])
    logsumexp = q.new_empty(q.shape[:3], dtype=torch.float32)
    mask, mask_strides, kind = _mask(q, softmax)
    with _on(q):
        carried_kernels.carried_forward[_grid(q, tiles.rows)](
            q,
            k,
            v,
            hidden if old is None else old,
            hidden,
            out,
            logsumexp,
            mask,
            q.stride()[:3],
            k.stride()[:3],
            v.stride()[:3],
            out.stride()[:3],
            mask_strides,
            *_sizes(q, k),
            settings.layout.per_head,
            settings.old_layout.per_head,
            settings.keep,
            settings.gain,
            *_dropout(softmax),
            HAS_OLD=old is not None,
            OLD_CAUSAL=settings.old_causal,
            **_blocks(q, v),
            **_softmax_options(softmax, kind),
            **_tile_options(q, tiles, softmax),
        )
    return out, logsumexp


def carried_backward(
    grad_out: Tensor,
    grad_hidden: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    hidden: Tensor,
    logsumexp: Tensor,
    *,
    grad_old: Tensor | None,
    settings: CarriedSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; that of H_{n-1} is written into `grad_old`, which may be `hidden` itself."""
    q, k, v, grad_out = (_rows_contiguous(t) for t in (q, k, v, grad_out))
    row, softmax = _row(q, v), settings.softmax
    gradient, layout, factor = _gradient_buffer(hidden, grad_old, settings)
    dq, dk, dv = (_empty_like(t, t.shape[3]) for t in (q, k, v))
    mask, mask_strides, kind = _mask(q, softmax)
    with _on(q):
        carried_kernels.carried_backward_keys[_grid(k, row.backward_keys.columns)](
            q,
            v,
            grad_out,
            logsumexp,
            _row_sums(out, grad_out),
            hidden,
            hidden if grad_hidden is None else grad_hidden,
            gradient,
            dk,
            dv,
            mask,
            q.stride()[:3],
            v.stride()[:3],
            grad_out.stride()[:3],
            dk.stride()[:3],
            dv.stride()[:3],
            mask_strides,
            *_sizes(q, k),
            settings.layout.per_head,
            layout.per_head,
            settings.gain,
            factor,
            *_dropout(softmax),
            GRADIENT_CAUSAL=layout.causal,
            FROM_ABOVE=grad_hidden is not None,
            **_blocks(q, v),
            **_softmax_options(softmax, kind),
            **_tile_options(q, row.backward_keys, softmax),
        )
        carried_kernels.carried_backward_queries[_grid(q, row.backward_queries.rows)](
            k,
            gradient,
            dq,
            k.stride()[:3],
            dq.stride()[:3],
            *_sizes(q, k),
            layout.per_head,
            settings.gain / factor,
            CAUSAL=softmax.is_causal,
            GRADIENT_CAUSAL=layout.causal,
            SIZE=q.shape[3],
            BLOCK=_block(q.shape[3]),
            **_tile_options(q, row.backward_queries, softmax),
        )
    if grad_old is not None and factor != settings.keep:
        grad_old.mul_(settings.keep)
    return dq, dk, dv


def _gradient_buffer(
    hidden: Tensor, grad_old: Tensor | None, settings: CarriedSettings
) -> tuple[Tensor, ScoreLayout, float]:
    """Where the gradient of the scores goes, its layout, and the factor it is stored with."""
    if grad_old is None:
        wide = torch.float32 if hidden.dtype == torch.float32 else torch.bfloat16  # float16 would lose small gradients
        return torch.empty_like(hidden, dtype=wide), settings.layout, 1.0
    if settings.old_layout != settings.layout:
        grad_old.zero_()  # keys that this layer has no scores of
    return grad_old, settings.old_layout, settings.keep if abs(settings.keep) >= SMALLEST_KEEP else 1.0


def stacked_forward(
    qs: Sequence[Tensor], ks: Sequence[Tensor], v: Tensor, settings: StackedSettings
) -> tuple[Tensor, Tensor]:
    """The output and each row's log-sum-exp (B, H, Q)."""
    q, k, v = torch.stack(tuple(qs)), torch.stack(tuple(ks)), _rows_contiguous(v)
    row, softmax = _row(q[0], v), settings.softmax
    tiles = row.stacked_forward
    out = _empty_like(q[0], v.shape[3])
    logsumexp = q.new_empty(q.shape[1:4], dtype=torch.float32)
    mask, mask_strides, kind = _mask(q, softmax)
    with _on(q):
        stacked_kernels.stacked_forward[_grid(q[0], tiles.rows)](
            q,
            k,
            v,
            _weights(settings.weights, q.device),
            out,
            logsumexp,
            mask,
            q.stride()[:4],
            k.stride()[:4],
            v.stride()[:3],
            out.stride()[:3],
            mask_strides,
            len(qs),
            *_sizes(q[0], k[0]),
            *_dropout(softmax),
            **_blocks(q[0], v),
            **_softmax_options(softmax, kind),
            **_tile_options(q, tiles, softmax),
        )
    return out, logsumexp


def stacked_backward(
    grad_out: Tensor,
    qs: Sequence[Tensor],
    ks: Sequence[Tensor],
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    *,
    settings: StackedSettings,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Gradients of all queries, of all keys and of v."""
    q, k = torch.stack(tuple(qs)), torch.stack(tuple(ks))
    v, grad_out = _rows_contiguous(v), _rows_contiguous(grad_out)
    softmax = settings.softmax
    row_sums = _row_sums(out, grad_out)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), _empty_like(v, v.shape[3])
    groups, members = k.shape[1] * k.shape[2], q.shape[2] // k.shape[2]
    per_group = members * softmax.layout.per_head
    at_once = min(max(1, SCRATCH_BYTES // (per_group * q.element_size())), groups)
    gradient = q.new_empty(at_once * per_group)  # the products below round it to the dtype of q in any case
    for first in range(0, groups, at_once):
        count = min(at_once, groups - first)
        with _on(q):
            _score_gradient(grad_out, q, k, v, logsumexp, row_sums, gradient, dv, first, count, settings)
            _term_gradients(q, k, gradient, dq, dk, first, count, settings)
    return list(dq), list(dk), dv


def _score_gradient(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    logsumexp: Tensor,
    row_sums: Tensor,
    gradient: Tensor,
    dv: Tensor,
    first: int,
    count: int,
    settings: StackedSettings,
) -> None:
    """dH_n of the heads of `count` groups into `gradient`, and dV of these groups."""
    softmax = settings.softmax
    tiles = _row(q[0], v).stacked_values
    mask, mask_strides, kind = _mask(q, softmax)
    stacked_kernels.stacked_backward_values[(count, triton.cdiv(k.shape[3], tiles.columns))](
        q,
        k,
        v,
        _weights(settings.weights, q.device),
        grad_out,
        logsumexp,
        row_sums,
        gradient,
        dv,
        mask,
        q.stride()[:4],
        k.stride()[:4],
        v.stride()[:3],
        grad_out.stride()[:3],
        dv.stride()[:3],
        mask_strides,
        q.shape[0],
        *_sizes(q[0], k[0]),
        softmax.layout.per_head,
        first,
        *_dropout(softmax),
        **_blocks(q[0], v),
        **_softmax_options(softmax, kind),
        **_tile_options(q, tiles, softmax),
    )


def _term_gradients(
    q: Tensor,
    k: Tensor,
    gradient: Tensor,
    dq: Tensor,
    dk: Tensor,
    first: int,
    count: int,
    settings: StackedSettings,
) -> None:
    """dQ_l and dK_l of every term l, for the heads of `count` groups."""
    softmax = settings.softmax
    weights = _weights(settings.weights, q.device)
    tiles = _row(q[0], q[0]).stacked_products
    sizes = (*_sizes(q[0], k[0]), softmax.layout.per_head, first)
    options = {"SIZE": q.shape[4], "BLOCK": _block(q.shape[4]), "CAUSAL": softmax.is_causal}
    options |= _tile_options(q, tiles, softmax)
    members = q.shape[2] // k.shape[2]
    stacked_kernels.stacked_backward_queries[(count * members, triton.cdiv(q.shape[3], tiles.rows), q.shape[0])](
        k, weights, gradient, dq, k.stride()[:4], dq.stride()[:4], *sizes, **options
    )
    stacked_kernels.stacked_backward_keys[(count, triton.cdiv(k.shape[3], tiles.columns), q.shape[0])](
        q, weights, gradient, dk, q.stride()[:4], dk.stride()[:4], *sizes, **options
    )


@functools.lru_cache(maxsize=256)
def _weights(weights: tuple[float, ...], device: torch.device) -> Tensor:
    """The terms' weights on the device; the same in every step, so copied there once."""
    return torch.tensor(weights, dtype=torch.float32, device=device)


def _row_sums(out: Tensor, grad_out: Tensor) -> Tensor:
    out = _rows_contiguous(out)
    batch, heads, queries, size = out.shape
    sums = out.new_empty(batch, heads, queries, dtype=torch.float32)
    carried_kernels.output_row_sums[_grid(out, 64)](
        out,
        grad_out,
        sums,
        out.stride()[:3],
        grad_out.stride()[:3],
        heads,
        queries,
        SIZE=size,
        BLOCK=_block(size),
        ROWS=64,
    )
    return sums


def _row(q: Tensor, v: Tensor) -> Config:
    """The row of the table for a layer."""
    name = generation(q.device)
    assert name is not None  # `serves` has said so
    return config(name, max(q.shape[3], v.shape[3]), q.dtype)


def _grid(t: Tensor, rows: int) -> tuple[int, int]:
    """One program per head and block of rows of (B, H, T, D)."""
    return t.shape[0] * t.shape[1], triton.cdiv(t.shape[2], rows)


def _on(q: Tensor) -> AbstractContextManager[Any]:
    """Triton starts kernels on the current device, which need not be that of the tensors."""
    return torch.cuda.device(q.device) if q.is_cuda else nullcontext()


def _rows_contiguous(t: Tensor) -> Tensor:
    return t if t.stride(3) == 1 else t.contiguous()


def _empty_like(t: Tensor, size: int) -> Tensor:
    """New memory (B, H, T, size), stored as (B, T, H, size): the layout of models of transformers."""
    batch, heads, tokens, _ = t.shape
    return t.new_empty(batch, tokens, heads, size).transpose(1, 2)


def _sizes(q: Tensor, k: Tensor) -> tuple[int, int, int, int]:
    return q.shape[1], k.shape[1], q.shape[2], k.shape[2]


def _block(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())  # a power of 2; tensor cores multiply 16 x 16


def _blocks(q: Tensor, v: Tensor) -> dict[str, int]:
    size, value_size = q.shape[3], v.shape[3]
    return {"SIZE": size, "VALUE_SIZE": value_size, "BLOCK": _block(size), "VALUE_BLOCK": _block(value_size)}


def _mask(q: Tensor, softmax: SoftmaxSettings) -> tuple[Tensor, tuple[int, ...], str]:
    """The mask expanded to (B, H, Q, K), its strides, and its kind; without one, a tensor that is not read."""
    if softmax.attn_mask is None:
        return q, (0, 0, 0, 0), "none"
    mask = softmax.attn_mask.expand(softmax.shape)
    if mask.dtype == torch.bool:
        return mask.view(torch.uint8), mask.stride(), "bool"
    return mask, mask.stride(), "additive"


def _dropout(softmax: SoftmaxSettings) -> tuple[int, int, int, float]:
    """Two halves of the seed, the threshold of the hash, and the factor of a weight that is not dropped."""
    threshold = min(round(softmax.dropout_p * 2**32), 2**32 - 1)
    words = (softmax.seed & 0xFFFFFFFF, softmax.seed >> 32, threshold)
    low, high, threshold = (word - 2**32 if word >= 2**31 else word for word in words)  # one type, whatever the value
    return low, high, threshold, survivor_factor(softmax.dropout_p)


def _softmax_options(softmax: SoftmaxSettings, mask_kind: str) -> dict[str, Any]:
    return {"CAUSAL": softmax.is_causal, "MASK": mask_kind, "DROPOUT": softmax.dropout_p > 0.0}


def _tile_options(q: Tensor, tiles: Tiles, softmax: SoftmaxSettings) -> dict[str, Any]:
    queries, keys = softmax.shape[2:]
    return {
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "EVEN": queries % tiles.rows == 0 and keys % tiles.columns == 0,
        "ALIGNED": keys % 16 == 0,
        "PRECISION": precision(q.dtype, generation(q.device) or ""),
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
