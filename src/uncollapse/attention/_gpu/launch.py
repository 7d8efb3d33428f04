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
from .._storage import as_scores
from . import carried_kernels, stacked_kernels
from .configs import Config, Tiles, config, generation, precision

if TYPE_CHECKING:
    from .._carried_tiles import CarriedSettings
    from .._coefficients import Coefficient
    from .._stacked_tiles import StackedSettings
    from .._strips import SoftmaxSettings
    from .._tiling import ScoreLayout

if triton.knobs.runtime.interpret:
    from .interpreter import repair

    repair()

SMALLEST_KEEP = 2.0**-20  # below, keep * gradient would lose digits to underflow that dQ needs
SUMMED_ROWS = 32  # a program of `output_row_sums`
SCRATCH_BYTES = 1 << 26  # for the score gradient of a few heads of `stacked`; one group of heads in any case


def carried_forward(
    q: Tensor, k: Tensor, v: Tensor, old: Tensor | None, hidden: Tensor, settings: CarriedSettings
) -> tuple[Tensor, Tensor]:
    """Write H_n into `hidden`, which may be `old` itself; the output and each row's log-sum-exp (B, H, Q)."""
    q, k, v = (_rows_contiguous(t) for t in (q, k, v))
    row, softmax = _row(q, v), settings.softmax
    tiles, scores = row.forward, as_scores(hidden)
    out = _empty_like(q, v.shape[3])
    logsumexp = q.new_empty(q.shape[:3], dtype=torch.float32)
    mask, mask_strides, kind = _mask(q, softmax)
    with _on(q):
        carried_kernels.carried_forward[_grid(q, tiles.rows)](
            q,
            k,
            v,
            scores if old is None else as_scores(old),
            scores,
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
            _for_heads(settings.keep, q),
            _for_heads(settings.gain, q),
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
    old: Tensor | None,
    *,
    grad_old: Tensor | None,
    settings: CarriedSettings,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, and of keep and gain (B, H), which are 0 for numbers.

    That of H_{n-1} is written into `grad_old`, which may be `hidden` itself. That of keep needs `old`, H_{n-1}.
    """
    q, k, v, grad_out = (_rows_contiguous(t) for t in (q, k, v, grad_out))
    row, softmax = _row(q, v), settings.softmax
    gradient, layout, factor = _gradient_buffer(grad_old, q, settings)
    learned = _is_learned(settings)
    grid_keys, grid_queries = _grid(k, row.backward_keys.columns), _grid(q, row.backward_queries.rows)
    grid_of_heads = (q.shape[0] * q.shape[1], grid_keys[1])
    dkeep = q.new_zeros(grid_of_heads if learned and old is not None else (grid_of_heads[0], 1), dtype=torch.float32)
    dgain = q.new_empty(grid_queries, dtype=torch.float32) if learned else dkeep
    dq, dk, dv = (_empty_like(t, t.shape[3]) for t in (q, k, v))
    mask, mask_strides, kind = _mask(q, softmax)
    with _on(q):
        carried_kernels.carried_backward_keys[grid_keys](
            q,
            v,
            grad_out,
            logsumexp,
            _row_sums(out, grad_out),
            as_scores(hidden),
            hidden if grad_hidden is None else grad_hidden,
            gradient,
            dk,
            dv,
            gradient if old is None else as_scores(old),
            dkeep,
            mask,
            _for_heads(settings.gain, q),
            _for_heads(factor, q),
            q.stride()[:3],
            v.stride()[:3],
            grad_out.stride()[:3],
            dk.stride()[:3],
            dv.stride()[:3],
            mask_strides,
            *_sizes(q, k),
            settings.layout.per_head,
            layout.per_head,
            *_dropout(softmax),
            GRADIENT_CAUSAL=layout.causal,
            FROM_ABOVE=grad_hidden is not None,
            LEARNED_KEEP=learned and old is not None,
            GAINS_DIFFER=learned and q.shape[1] != k.shape[1],
            **_blocks(q, v),
            **_softmax_options(softmax, kind),
            **_tile_options(q, row.backward_keys, softmax),
        )
        carried_kernels.carried_backward_queries[grid_queries](
            q,
            k,
            gradient,
            dq,
            dgain,
            _for_heads(settings.keep, q),
            _for_heads(settings.gain / factor, q),
            q.stride()[:3],
            k.stride()[:3],
            dq.stride()[:3],
            *_sizes(q, k),
            layout.per_head,
            LEARNED_GAIN=learned,
            RESCALE=grad_old is not None and factor is not settings.keep,
            CAUSAL=softmax.is_causal,
            GRADIENT_CAUSAL=layout.causal,
            SIZE=q.shape[3],
            BLOCK=_block(q.shape[3]),
            **_tile_options(q, row.backward_queries, softmax),
        )
    pair = (q.shape[0], q.shape[1])
    return dq, dk, dv, dkeep.sum(dim=1).view(pair), dgain.sum(dim=1).view(pair)


def _gradient_buffer(
    grad_old: Tensor | None, q: Tensor, settings: CarriedSettings
) -> tuple[Tensor, ScoreLayout, float]:
    """Where the gradient of the scores goes, its layout, and the factor it is stored with."""
    if grad_old is None:
        return settings.new_buffer(settings.old_layout, q), settings.old_layout, 1.0
    if settings.old_layout != settings.layout:
        grad_old.zero_()  # keys that this layer has no scores of
    keep = settings.keep
    if isinstance(keep, Tensor) or _is_learned(settings) or abs(keep) < SMALLEST_KEEP:
        return grad_old, settings.old_layout, 1.0
    return grad_old, settings.old_layout, keep


def _is_learned(settings: CarriedSettings) -> bool:
    return isinstance(settings.keep, Tensor) or isinstance(settings.gain, Tensor)


def _for_heads(value: Coefficient, like: Tensor) -> Tensor:
    """A coefficient as one number for each head (H,) on the device."""
    if isinstance(value, Tensor):
        return value.contiguous()
    return _numbers((value,), like.shape[1], like.device)[0]


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
            _weights(settings, q),
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
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Gradients of all queries, of all keys, of v and of the weights (L, B, H), which are 0 for numbers."""
    q, k = torch.stack(tuple(qs)), torch.stack(tuple(ks))
    v, grad_out = _rows_contiguous(v), _rows_contiguous(grad_out)
    softmax, weights = settings.softmax, _weights(settings, q)
    row_sums = _row_sums(out, grad_out)
    blocks = triton.cdiv(q.shape[3], _row(q[0], q[0]).stacked_products.rows)
    dweights = q.new_zeros(q.shape[0], q.shape[1] * q.shape[2], blocks, dtype=torch.float32)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), _empty_like(v, v.shape[3])
    groups, members = k.shape[1] * k.shape[2], q.shape[2] // k.shape[2]
    per_group = members * softmax.layout.per_head
    at_once = min(max(1, SCRATCH_BYTES // (per_group * q.element_size())), groups)
    gradient = q.new_empty(at_once * per_group)  # the products below round it to the dtype of q in any case
    for first in range(0, groups, at_once):
        count = min(at_once, groups - first)
        with _on(q):
            _score_gradient(grad_out, q, k, v, weights, logsumexp, row_sums, gradient, dv, first, count, softmax)
            _term_gradients(q, k, weights, gradient, dq, dk, dweights, first, count, settings)
    return list(dq), list(dk), dv, dweights.sum(dim=2).view(q.shape[:3])


def _score_gradient(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    logsumexp: Tensor,
    row_sums: Tensor,
    gradient: Tensor,
    dv: Tensor,
    first: int,
    count: int,
    softmax: SoftmaxSettings,
) -> None:
    """Write dH_n of the heads of `count` groups into `gradient`, and dV of these groups."""
    tiles = _row(q[0], v).stacked_values
    mask, mask_strides, kind = _mask(q, softmax)
    stacked_kernels.stacked_backward_values[(count, triton.cdiv(k.shape[3], tiles.columns))](
        q,
        k,
        v,
        weights,
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
    weights: Tensor,
    gradient: Tensor,
    dq: Tensor,
    dk: Tensor,
    dweights: Tensor,
    first: int,
    count: int,
    settings: StackedSettings,
) -> None:
    """dQ_l and dK_l of every term l, for the heads of `count` groups."""
    softmax = settings.softmax
    learned = isinstance(settings.weights[0], Tensor)
    tiles = _row(q[0], q[0]).stacked_products
    sizes = (*_sizes(q[0], k[0]), softmax.layout.per_head)
    options = {"SIZE": q.shape[4], "BLOCK": _block(q.shape[4]), "CAUSAL": softmax.is_causal}
    options |= _tile_options(q, tiles, softmax)
    members = q.shape[2] // k.shape[2]
    stacked_kernels.stacked_backward_queries[(count * members, triton.cdiv(q.shape[3], tiles.rows), q.shape[0])](
        q,
        k,
        weights,
        gradient,
        dq,
        dweights,
        q.stride()[:4],
        k.stride()[:4],
        dq.stride()[:4],
        *sizes,
        q.shape[1] * q.shape[2],
        first,
        LEARNED=learned,
        **options,
    )
    stacked_kernels.stacked_backward_keys[(count, triton.cdiv(k.shape[3], tiles.columns), q.shape[0])](
        q,
        weights,
        gradient,
        dk,
        q.stride()[:4],
        dk.stride()[:4],
        *sizes,
        first,
        WEIGHTS_DIFFER=learned and members > 1,
        **options,
    )


def _weights(settings: StackedSettings, q: Tensor) -> Tensor:
    """The weights of the terms (L, H) of `q` (L, B, H, Q, D)."""
    if isinstance(settings.weights[0], Tensor):
        return torch.stack(list(settings.weights))  # type: ignore[arg-type]
    return _numbers(settings.weights, q.shape[2], q.device)


@functools.lru_cache(maxsize=1024)
def _numbers(values: tuple[float, ...], heads: int, device: torch.device) -> Tensor:
    """Numbers (L, H), the same for all heads, on the device; the same in every step, so copied there once."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1).repeat(1, heads)


def _row_sums(out: Tensor, grad_out: Tensor) -> Tensor:
    out = _rows_contiguous(out)
    batch, heads, queries, size = out.shape
    sums = out.new_empty(batch, heads, queries, dtype=torch.float32)
    carried_kernels.output_row_sums[_grid(out, SUMMED_ROWS)](
        out,
        grad_out,
        sums,
        out.stride()[:3],
        grad_out.stride()[:3],
        heads,
        queries,
        SIZE=size,
        BLOCK=_block(size),
        ROWS=SUMMED_ROWS,
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
