"""One layer of `carried` in Triton: a forward kernel, and a backward pass without atomics.

The backward pass writes the gradient of the old scores first, tile by tile, and may write it over the scores: each tile
has one reader, which is its writer. The gradient of the queries is then a product with what was written.

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size. Score buffers are flat
(`ScoreLayout`).
"""

import triton
import triton.language as tl

from .tile_functions import (
    LOG2E,
    TILE,
    as_stored,
    at_head,
    dropout_factors,
    hide_future,
    hide_masked,
    load_rows,
    load_scores,
    locate,
    softmax_end,
    softmax_step,
    store_rows,
    store_scores,
    strip_of,
)


@triton.jit(do_not_specialize=["seed_low", "seed_high", "threshold"])
def carried_forward(
    q,
    k,
    v,
    old,
    hidden,
    out,
    logsumexp,
    mask,
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    mask_strides,
    heads,
    groups,
    queries,
    keys,
    per_head,
    old_per_head,
    keep,
    gain,
    seed_low,
    seed_high,
    threshold,
    survivor,
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_OLD: tl.constexpr,
    OLD_CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """H_n = keep H_{n-1} + gain Q K^T into `hidden`, softmax(H_n) V into `out`; one program for ROWS rows of a head."""
    head = tl.program_id(0)
    block = tl.program_id(1)
    if CAUSAL:
        block = tl.num_programs(1) - 1 - block  # the widest first, so that no long program starts last
    batch, query_head, group = locate(head, heads, groups)
    first = block * ROWS
    within = tl.arange(0, ROWS)
    rows = first + within
    q_head = q + batch * q_strides[0] + query_head * q_strides[1]
    k_head = k + batch * k_strides[0] + group * k_strides[1]
    v_head = v + batch * v_strides[0] + group * v_strides[1]
    mask_head = mask + batch * mask_strides[0] + query_head * mask_strides[1]
    head_keep = tl.load(keep + query_head)
    head_gain = tl.load(gain + query_head)
    q_rows = load_rows(q_head, rows, q_strides[2], queries, SIZE, BLOCK, EVEN)
    offset, width = strip_of(first, queries, keys, CAUSAL, ALIGNED)
    hidden_rows = at_head(hidden, head, per_head) + offset
    old_offset, old_width = strip_of(first, queries, keys, OLD_CAUSAL, ALIGNED)
    old_rows = at_head(old, head, old_per_head) + old_offset

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    for start in range(0, width, COLUMNS):
        columns = tl.multiple_of(start, COLUMNS) + tl.arange(0, COLUMNS)
        inside = (rows < queries)[:, None] & (columns < width)[None, :]
        k_rows = load_rows(k_head, columns, k_strides[2], keys, SIZE, BLOCK, EVEN)
        scores = tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION) * head_gain
        if HAS_OLD:
            old_scores = old_rows + within[:, None] * old_width + columns[None, :]
            scores += head_keep * load_scores(old_scores, inside, 0.0, EVEN)
        if CAUSAL:
            scores = hide_future(scores, rows, columns)
        stored = as_stored(scores, hidden.dtype.element_ty)  # before the softmax: the backward pass reads the same
        store_scores(hidden_rows + within[:, None] * width + columns[None, :], stored, inside, EVEN)
        scores = stored.to(tl.float32)
        scores = hide_masked(scores, mask_head, mask_strides, rows, columns, queries, keys, MASK, EVEN)
        weights, largest, total, shrink = softmax_step(scores, largest, total)
        if DROPOUT:
            weights *= dropout_factors(head, rows, columns, queries, seed_low, seed_high, threshold, survivor)
        v_rows = load_rows(v_head, columns, v_strides[2], keys, VALUE_SIZE, VALUE_BLOCK, EVEN)
        weighted = tl.dot(weights.to(v_rows.dtype), v_rows, weighted * shrink[:, None], input_precision=PRECISION)

    divisor, row_logsumexp = softmax_end(largest, total)
    tl.store(at_head(logsumexp, head, queries) + rows, row_logsumexp, mask=rows < queries)
    out_head = out + batch * out_strides[0] + query_head * out_strides[1]
    store_rows(out_head, weighted / divisor[:, None], rows, out_strides[2], queries, VALUE_SIZE, VALUE_BLOCK)


@triton.jit
def output_row_sums(
    out,
    grad_out,
    row_sums,
    out_strides,
    grad_strides,
    heads,
    queries,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Sum over the keys of weight * its gradient, which the softmax gradient needs: (B, H, Q)."""
    head = tl.program_id(0)
    batch, query_head, _ = locate(head, heads, heads)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_head = out + batch * out_strides[0] + query_head * out_strides[1]
    grad_head = grad_out + batch * grad_strides[0] + query_head * grad_strides[1]
    ours = load_rows(out_head, rows, out_strides[2], queries, SIZE, BLOCK, False).to(tl.float32)
    theirs = load_rows(grad_head, rows, grad_strides[2], queries, SIZE, BLOCK, False).to(tl.float32)
    tl.store(at_head(row_sums, head, queries) + rows, tl.sum(ours * theirs, 1), mask=rows < queries)


@triton.jit(do_not_specialize=["seed_low", "seed_high", "threshold"])
def carried_backward_keys(
    q,
    v,
    grad_out,
    logsumexp,
    row_sums,
    hidden,
    grad_hidden,
    gradient,
    dk,
    dv,
    old,
    dkeep,
    mask,
    gain,
    factor,
    q_strides,
    v_strides,
    grad_strides,
    dk_strides,
    dv_strides,
    mask_strides,
    heads,
    groups,
    queries,
    keys,
    per_head,
    gradient_per_head,
    seed_low,
    seed_high,
    threshold,
    survivor,
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
    GRADIENT_CAUSAL: tl.constexpr,
    FROM_ABOVE: tl.constexpr,
    LEARNED_KEEP: tl.constexpr,
    GAINS_DIFFER: tl.constexpr,
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write dK and dV, and factor * dH_n into `gradient`, which may be `hidden`.

    One program for COLUMNS keys of a group.
    `dkeep` (B * H, blocks of keys) gets the sums of dH_n H_{n-1}, if `old` is H_{n-1}, in the layout of `gradient`.
    A causal mask is not needed: the forward pass has stored -inf for later keys, whose weight and gradient are then 0.
    """
    batch, group, _ = locate(tl.program_id(0), groups, groups)
    block = tl.program_id(1)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    within = tl.arange(0, ROWS)
    v_head = v + batch * v_strides[0] + group * v_strides[1]
    v_rows = load_rows(v_head, columns, v_strides[2], keys, VALUE_SIZE, VALUE_BLOCK, EVEN)
    grad_k = tl.zeros([COLUMNS, BLOCK], tl.float32)
    grad_v = tl.zeros([COLUMNS, VALUE_BLOCK], tl.float32)
    lowest = 0
    if CAUSAL:
        lowest = block * COLUMNS // TILE * TILE  # the first strip in which these keys are stored
    for member in range(0, heads // groups):
        query_head = group * (heads // groups) + member
        head = batch * heads + query_head
        q_head = q + batch * q_strides[0] + query_head * q_strides[1]
        grad_head = grad_out + batch * grad_strides[0] + query_head * grad_strides[1]
        mask_head = mask + batch * mask_strides[0] + query_head * mask_strides[1]
        head_gain = tl.load(gain + query_head)
        head_factor = tl.load(factor + query_head)
        keep_sums = tl.zeros([ROWS], tl.float32)
        for first in range(lowest, queries, ROWS):
            first = tl.multiple_of(first, ROWS)
            rows = first + within
            offset, width = strip_of(first, queries, keys, CAUSAL, ALIGNED)
            inside = (rows < queries)[:, None] & (columns < width)[None, :]
            tile = offset + within[:, None] * width + columns[None, :]
            scores = load_scores(at_head(hidden, head, per_head) + tile, inside, float("-inf"), EVEN)
            scores = hide_masked(scores, mask_head, mask_strides, rows, columns, queries, keys, MASK, EVEN)
            row_logsumexp = tl.load(at_head(logsumexp, head, queries) + rows, mask=rows < queries, other=float("inf"))
            weights = tl.exp2((scores - row_logsumexp[:, None]) * LOG2E)
            grad_rows = load_rows(grad_head, rows, grad_strides[2], queries, VALUE_SIZE, VALUE_BLOCK, EVEN)
            grad_weights = tl.dot(grad_rows, tl.trans(v_rows), input_precision=PRECISION)
            used = weights
            if DROPOUT:
                factors = dropout_factors(head, rows, columns, queries, seed_low, seed_high, threshold, survivor)
                used = weights * factors
                grad_weights *= factors
            used = tl.trans(used.to(grad_rows.dtype))
            grad_v = tl.dot(used, grad_rows, grad_v, input_precision=PRECISION)
            sums = tl.load(at_head(row_sums, head, queries) + rows, mask=rows < queries, other=0.0)
            grad_scores = weights * (grad_weights - sums[:, None])
            if FROM_ABOVE:
                grad_scores += load_scores(at_head(grad_hidden, head, per_head) + tile, inside, 0.0, EVEN)
            to_offset, to_width = strip_of(first, queries, keys, GRADIENT_CAUSAL, ALIGNED)
            to_tile = to_offset + within[:, None] * to_width + columns[None, :]
            passed_on = (grad_scores * head_factor).to(gradient.dtype.element_ty)
            store_scores(at_head(gradient, head, gradient_per_head) + to_tile, passed_on, inside, EVEN)
            if LEARNED_KEEP:
                before = load_scores(at_head(old, head, gradient_per_head) + to_tile, inside, 0.0, EVEN)
                if CAUSAL:
                    before = tl.where(columns[None, :] <= rows[:, None], before, 0.0)  # later keys hold -inf
                keep_sums += tl.sum(grad_scores * before, 1)
            q_rows = load_rows(q_head, rows, q_strides[2], queries, SIZE, BLOCK, EVEN)
            turned = tl.trans(grad_scores.to(q_rows.dtype))
            if GAINS_DIFFER:
                grad_k += head_gain * tl.dot(turned, q_rows, input_precision=PRECISION)
            else:
                grad_k = tl.dot(turned, q_rows, grad_k, input_precision=PRECISION)
        if LEARNED_KEEP:
            tl.store(at_head(dkeep, head, tl.num_programs(1)) + block, tl.sum(keep_sums, 0))
    if not GAINS_DIFFER:
        grad_k *= tl.load(gain + group * (heads // groups))
    dk_head = dk + batch * dk_strides[0] + group * dk_strides[1]
    dv_head = dv + batch * dv_strides[0] + group * dv_strides[1]
    store_rows(dk_head, grad_k, columns, dk_strides[2], keys, SIZE, BLOCK)
    store_rows(dv_head, grad_v, columns, dv_strides[2], keys, VALUE_SIZE, VALUE_BLOCK)


@triton.jit
def times_keys(
    gradient,
    k_head,
    k_stride,
    first,
    queries,
    keys,
    keep,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
    GRADIENT_CAUSAL: tl.constexpr,
    RESCALE: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Rows first .. first + ROWS of a head's score gradient times its keys: (ROWS, BLOCK).

    With RESCALE the gradient is then overwritten with keep times it: no other program reads it.
    """
    within = tl.arange(0, ROWS)
    offset, width = strip_of(first, queries, keys, GRADIENT_CAUSAL, ALIGNED)
    product = tl.zeros([ROWS, BLOCK], tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(first + ROWS, keys)
    for start in range(0, end, COLUMNS):
        columns = tl.multiple_of(start, COLUMNS) + tl.arange(0, COLUMNS)
        inside = (first + within < queries)[:, None] & (columns < end)[None, :]
        tile = gradient + offset + within[:, None] * width + columns[None, :]
        # Keys beyond `end` are in the same strip, where the gradient is 0, as long as tiles do not pass its width.
        scores = load_scores(tile, inside, 0.0, EVEN)
        if RESCALE:
            store_scores(tile, (scores * keep).to(gradient.dtype.element_ty), inside, EVEN)
        k_rows = load_rows(k_head, columns, k_stride, keys, SIZE, BLOCK, EVEN)
        product = tl.dot(scores.to(k_rows.dtype), k_rows, product, input_precision=PRECISION)
    return product


@triton.jit
def carried_backward_queries(
    q,
    k,
    gradient,
    dq,
    dgain,
    keep,
    factor,
    q_strides,
    k_strides,
    dq_strides,
    heads,
    groups,
    queries,
    keys,
    gradient_per_head,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
    GRADIENT_CAUSAL: tl.constexpr,
    LEARNED_GAIN: tl.constexpr,
    RESCALE: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write dQ = factor * gradient K, with what `carried_backward_keys` has written.

    One program for ROWS rows of a head.
    `dgain` (B * H, blocks of queries) gets the sums of Q times gradient K.
    """
    head = tl.program_id(0)
    block = tl.program_id(1)
    if CAUSAL:
        block = tl.num_programs(1) - 1 - block
    batch, query_head, group = locate(head, heads, groups)
    first = block * ROWS
    rows = first + tl.arange(0, ROWS)
    product = times_keys(
        at_head(gradient, head, gradient_per_head),
        k + batch * k_strides[0] + group * k_strides[1],
        k_strides[2],
        first,
        queries,
        keys,
        tl.load(keep + query_head),
        SIZE,
        BLOCK,
        ROWS,
        COLUMNS,
        CAUSAL,
        GRADIENT_CAUSAL,
        RESCALE,
        EVEN,
        ALIGNED,
        PRECISION,
    )
    if LEARNED_GAIN:
        q_head = q + batch * q_strides[0] + query_head * q_strides[1]
        q_rows = load_rows(q_head, rows, q_strides[2], queries, SIZE, BLOCK, EVEN).to(tl.float32)
        tl.store(at_head(dgain, head, tl.num_programs(1)) + block, tl.sum(tl.sum(q_rows * product, 1), 0))
    dq_head = dq + batch * dq_strides[0] + query_head * dq_strides[1]
    store_rows(dq_head, product * tl.load(factor + query_head), rows, dq_strides[2], queries, SIZE, BLOCK)
