"""What the kernels of `carried` and `stacked` share: loads, masks, dropout, one step of the softmax.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size. A tile is (ROWS, COLUMNS): query rows
and keys. EVEN says that tiles cut Q and K without rest, so that no load needs a mask.
"""

import triton
import triton.language as tl

from .._tiling import TILE as STRIP_ROWS

LOG2E = tl.constexpr(1.4426950408889634)
TILE = tl.constexpr(STRIP_ROWS)
FLOAT16_MAX = tl.constexpr(65504.0)


@triton.jit
def locate(head, heads, groups):
    """Batch, query head and key/value head of a flat index, in 64 bits: offsets of heads may pass 2^31."""
    batch = (head // heads).to(tl.int64)
    query_head = (head % heads).to(tl.int64)
    return batch, query_head, query_head // (heads // groups)


@triton.jit
def at_head(buffer, head, per_head):
    """Where the memory of a head starts, in 64 bits: all heads together may have more than 2^31 scores."""
    return buffer + head.to(tl.int64) * per_head


@triton.jit
def strip_of(first, queries, keys, CAUSAL: tl.constexpr, ALIGNED: tl.constexpr):
    """Offset of the query row `first` in the memory of its head, and the row stride there (see `ScoreLayout`)."""
    if CAUSAL:
        strip = first // TILE
        width = tl.minimum((strip + 1) * TILE, queries)
        offset = strip * (strip + 1) // 2 * TILE * TILE + (first - strip * TILE) * width
    else:
        width = keys
        offset = first * keys
    if ALIGNED:
        width = tl.multiple_of(width, 16)
        offset = tl.multiple_of(offset, 16)
    return offset, width


@triton.jit
def load_rows(matrix, rows, stride, limit, SIZE: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Rows (N, BLOCK) of a matrix (limit, SIZE); what lies outside is 0."""
    sizes = tl.arange(0, BLOCK)
    where = matrix + rows[:, None] * stride + sizes[None, :]
    if EVEN:
        if SIZE == BLOCK:
            block = tl.load(where)
        else:
            block = tl.load(where, mask=(sizes < SIZE)[None, :], other=0.0)
    else:
        block = tl.load(where, mask=(rows < limit)[:, None] & (sizes < SIZE)[None, :], other=0.0)
    return block


@triton.jit
def store_rows(matrix, block, rows, stride, limit, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Write rows (N, BLOCK), in the dtype of the matrix (limit, SIZE)."""
    sizes = tl.arange(0, BLOCK)
    where = matrix + rows[:, None] * stride + sizes[None, :]
    inside = (rows < limit)[:, None] & (sizes < SIZE)[None, :]
    tl.store(where, block.to(matrix.dtype.element_ty), mask=inside)


@triton.jit
def load_scores(where, inside, outside: tl.constexpr, EVEN: tl.constexpr):
    """A tile of scores in float32; `outside` beyond the matrix."""
    if EVEN:
        scores = tl.load(where)
    else:
        scores = tl.load(where, mask=inside, other=outside)
    return scores.to(tl.float32)


@triton.jit
def store_scores(where, scores, inside, EVEN: tl.constexpr):
    """Write a tile of scores that has the dtype of its memory."""
    if EVEN:
        tl.store(where, scores)
    else:
        tl.store(where, scores, mask=inside)


@triton.jit
def as_stored(scores, dtype: tl.constexpr):
    """Scores as the next layer will read them; float16 ends at its largest number, but -inf stays."""
    if dtype == tl.float16:
        bounded = tl.minimum(tl.maximum(scores, -FLOAT16_MAX), FLOAT16_MAX)
        scores = tl.where(scores == float("-inf"), scores, bounded)
    return scores.to(dtype)


@triton.jit
def hide_future(scores, rows, columns):
    """Scores with -inf for keys after the query."""
    return tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))


@triton.jit
def hide_masked(scores, mask, strides, rows, columns, queries, keys, MASK: tl.constexpr, EVEN: tl.constexpr):
    """Scores with -inf for keys that do not exist or are masked, and with an additive mask added."""
    if not EVEN:
        scores = tl.where((columns < keys)[None, :], scores, float("-inf"))
    if MASK != "none":
        where = mask + rows[:, None] * strides[2] + columns[None, :] * strides[3]
        inside = (rows < queries)[:, None] & (columns < keys)[None, :]
        if MASK == "bool":
            scores = tl.where(tl.load(where, mask=inside, other=0) != 0, scores, float("-inf"))
        else:
            scores += tl.load(where, mask=inside, other=0.0).to(tl.float32)
    return scores


@triton.jit
def mix(x):
    """A 32-bit hash, that of `_dropout._mix`."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def dropout_factors(head, rows, columns, queries, seed_low, seed_high, threshold, survivor):
    """Factors (ROWS, COLUMNS) of the attention weights, those of `_dropout.dropout_factors`."""
    row = (head.to(tl.int64) * queries + rows).to(tl.uint32)
    row = mix(row ^ seed_low.to(tl.uint32, bitcast=True))
    row = mix(row ^ seed_high.to(tl.uint32, bitcast=True))
    column = columns.to(tl.uint32) * 0x9E3779B9
    bits = mix(column[None, :] ^ row[:, None])
    return tl.where(bits >= threshold.to(tl.uint32, bitcast=True), survivor, 0.0)


@triton.jit
def softmax_step(scores, largest, total):
    """Weights of a tile relative to the largest score so far; that score, their sum, and the factor of old sums."""
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # a row that has seen no key yet
    weights = tl.exp2((scores - shift[:, None]) * LOG2E)
    shrink = tl.exp2((largest - shift) * LOG2E)
    return weights, new_largest, total * shrink + tl.sum(weights, 1), shrink


@triton.jit
def softmax_end(largest, total):
    """The divisor of the output, and the log-sum-exp; +inf for a row that sees no key, whose weights are 0."""
    divisor = tl.where(total == 0.0, 1.0, total)
    return divisor, tl.where(total == 0.0, float("inf"), largest + tl.log(divisor))
