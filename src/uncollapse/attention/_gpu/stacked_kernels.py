"""One layer of `stacked` in Triton: tiles of H_n = sum_l weight_l Q_l K_l^T are made when they are needed.

The terms lie in one tensor each for queries and keys, (L, B, H, Q, D) and (L, B, G, K, D), and a loop runs over them:
with the layers unrolled a program would need up to a megabyte of shared memory. The backward pass writes the gradient
of the scores of a few heads to a scratch buffer, from which each term's dQ and dK is one product.

Shapes: L terms, B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

import triton
import triton.language as tl

from .carried_kernels import times_keys
from .tile_functions import (
    LOG2E,
    TILE,
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


@triton.jit
def sum_of_terms(
    q_head,
    k_head,
    weights,
    q_strides,
    k_strides,
    rows,
    columns,
    terms,
    heads,
    queries,
    keys,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of H_n (ROWS, COLUMNS); `weights` are those of the head, `heads` apart."""
    scores = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(0, terms):
        q_rows = load_rows(q_head, rows, q_strides[3], queries, SIZE, BLOCK, EVEN)
        k_rows = load_rows(k_head, columns, k_strides[3], keys, SIZE, BLOCK, EVEN)
        scores += tl.load(weights) * tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
        q_head += q_strides[0]  # step by step: term * stride may pass 2^31
        k_head += k_strides[0]
        weights += heads
    return scores


@triton.jit(do_not_specialize=["seed_low", "seed_high", "threshold"])
def stacked_forward(
    q,
    k,
    v,
    weights,
    out,
    logsumexp,
    mask,
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    mask_strides,
    terms,
    heads,
    groups,
    queries,
    keys,
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
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """softmax(H_n) V into `out`; one program for ROWS rows of a head."""
    head = tl.program_id(0)
    block = tl.program_id(1)
    if CAUSAL:
        block = tl.num_programs(1) - 1 - block  # the widest first, so that no long program starts last
    batch, query_head, group = locate(head, heads, groups)
    first = block * ROWS
    rows = first + tl.arange(0, ROWS)
    q_head = q + batch * q_strides[1] + query_head * q_strides[2]
    k_head = k + batch * k_strides[1] + group * k_strides[2]
    v_head = v + batch * v_strides[0] + group * v_strides[1]
    mask_head = mask + batch * mask_strides[0] + query_head * mask_strides[1]

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(first + ROWS, keys)
    for start in range(0, end, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        scores = sum_of_terms(
            q_head,
            k_head,
            weights + query_head,
            q_strides,
            k_strides,
            rows,
            columns,
            terms,
            heads,
            queries,
            keys,
            SIZE,
            BLOCK,
            ROWS,
            COLUMNS,
            EVEN,
            PRECISION,
        )
        if CAUSAL:
            scores = hide_future(scores, rows, columns)
        scores = hide_masked(scores, mask_head, mask_strides, rows, columns, queries, keys, MASK, EVEN)
        tile, largest, total, shrink = softmax_step(scores, largest, total)
        if DROPOUT:
            tile *= dropout_factors(head, rows, columns, queries, seed_low, seed_high, threshold, survivor)
        v_rows = load_rows(v_head, columns, v_strides[2], keys, VALUE_SIZE, VALUE_BLOCK, EVEN)
        weighted = tl.dot(tile.to(v_rows.dtype), v_rows, weighted * shrink[:, None], input_precision=PRECISION)

    divisor, row_logsumexp = softmax_end(largest, total)
    tl.store(at_head(logsumexp, head, queries) + rows, row_logsumexp, mask=rows < queries)
    out_head = out + batch * out_strides[0] + query_head * out_strides[1]
    store_rows(out_head, weighted / divisor[:, None], rows, out_strides[2], queries, VALUE_SIZE, VALUE_BLOCK)


@triton.jit(do_not_specialize=["seed_low", "seed_high", "threshold", "first_group"])
def stacked_backward_values(
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
    q_strides,
    k_strides,
    v_strides,
    grad_strides,
    dv_strides,
    mask_strides,
    terms,
    heads,
    groups,
    queries,
    keys,
    per_head,
    first_group,
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
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write dV, and dH_n into the scratch `gradient`, which starts with the heads of `first_group`.

    One program for COLUMNS keys of a group.
    """
    local_group = tl.program_id(0)
    block = tl.program_id(1)
    batch, group, _ = locate(first_group + local_group, groups, groups)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    within = tl.arange(0, ROWS)
    k_head = k + batch * k_strides[1] + group * k_strides[2]
    v_head = v + batch * v_strides[0] + group * v_strides[1]
    v_rows = load_rows(v_head, columns, v_strides[2], keys, VALUE_SIZE, VALUE_BLOCK, EVEN)
    grad_v = tl.zeros([COLUMNS, VALUE_BLOCK], tl.float32)
    lowest = 0
    if CAUSAL:
        lowest = block * COLUMNS // TILE * TILE  # the first strip in which these keys are stored
    for member in range(0, heads // groups):
        query_head = group * (heads // groups) + member
        head = batch * heads + query_head
        to_head = at_head(gradient, local_group * (heads // groups) + member, per_head)
        q_head = q + batch * q_strides[1] + query_head * q_strides[2]
        grad_head = grad_out + batch * grad_strides[0] + query_head * grad_strides[1]
        mask_head = mask + batch * mask_strides[0] + query_head * mask_strides[1]
        for first in range(lowest, queries, ROWS):
            rows = first + within
            scores = sum_of_terms(
                q_head,
                k_head,
                weights + query_head,
                q_strides,
                k_strides,
                rows,
                columns,
                terms,
                heads,
                queries,
                keys,
                SIZE,
                BLOCK,
                ROWS,
                COLUMNS,
                EVEN,
                PRECISION,
            )
            if CAUSAL:
                scores = hide_future(scores, rows, columns)
            scores = hide_masked(scores, mask_head, mask_strides, rows, columns, queries, keys, MASK, EVEN)
            row_logsumexp = tl.load(at_head(logsumexp, head, queries) + rows, mask=rows < queries, other=float("inf"))
            tile = tl.exp2((scores - row_logsumexp[:, None]) * LOG2E)
            grad_rows = load_rows(grad_head, rows, grad_strides[2], queries, VALUE_SIZE, VALUE_BLOCK, EVEN)
            grad_tile = tl.dot(grad_rows, tl.trans(v_rows), input_precision=PRECISION)
            used = tile
            if DROPOUT:
                factors = dropout_factors(head, rows, columns, queries, seed_low, seed_high, threshold, survivor)
                used = tile * factors
                grad_tile *= factors
            used = tl.trans(used.to(grad_rows.dtype))
            grad_v = tl.dot(used, grad_rows, grad_v, input_precision=PRECISION)
            sums = tl.load(at_head(row_sums, head, queries) + rows, mask=rows < queries, other=0.0)
            offset, width = strip_of(first, queries, keys, CAUSAL, ALIGNED)
            inside = (rows < queries)[:, None] & (columns < width)[None, :]
            grad_scores = (tile * (grad_tile - sums[:, None])).to(gradient.dtype.element_ty)
            where = to_head + offset + within[:, None] * width + columns[None, :]
            store_scores(where, grad_scores, inside, EVEN)
    dv_head = dv + batch * dv_strides[0] + group * dv_strides[1]
    store_rows(dv_head, grad_v, columns, dv_strides[2], keys, VALUE_SIZE, VALUE_BLOCK)


@triton.jit(do_not_specialize=["first_group"])
def stacked_backward_queries(
    q,
    k,
    weights,
    gradient,
    dq,
    dweights,
    q_strides,
    k_strides,
    dq_strides,
    heads,
    groups,
    queries,
    keys,
    per_head,
    all_heads,
    first_group,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEARNED: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write dQ_l = weight_l gradient K_l; one program for ROWS rows of a head and a term l.

    `dweights` (L, B * H, blocks of queries) gets the sums of Q_l times gradient K_l.
    """
    local_head = tl.program_id(0)
    block = tl.program_id(1)
    term = tl.program_id(2)
    head = first_group * (heads // groups) + local_head
    batch, query_head, group = locate(head, heads, groups)
    first = block * ROWS
    rows = first + tl.arange(0, ROWS)
    product = times_keys(
        at_head(gradient, local_head, per_head),
        at_head(k, term, k_strides[0]) + batch * k_strides[1] + group * k_strides[2],
        k_strides[3],
        first,
        queries,
        keys,
        1.0,
        SIZE,
        BLOCK,
        ROWS,
        COLUMNS,
        CAUSAL,
        CAUSAL,
        False,
        EVEN,
        ALIGNED,
        PRECISION,
    )
    dq_head = at_head(dq, term, dq_strides[0]) + batch * dq_strides[1] + query_head * dq_strides[2]
    weight = tl.load(weights + term * heads + query_head)
    store_rows(dq_head, product * weight, rows, dq_strides[3], queries, SIZE, BLOCK)
    if LEARNED:
        q_head = at_head(q, term, q_strides[0]) + batch * q_strides[1] + query_head * q_strides[2]
        q_rows = load_rows(q_head, rows, q_strides[3], queries, SIZE, BLOCK, EVEN).to(tl.float32)
        to_head = at_head(dweights, term * all_heads + head, tl.num_programs(1))
        tl.store(to_head + block, tl.sum(tl.sum(q_rows * product, 1), 0))


@triton.jit(do_not_specialize=["first_group"])
def stacked_backward_keys(
    q,
    weights,
    gradient,
    dk,
    q_strides,
    dk_strides,
    heads,
    groups,
    queries,
    keys,
    per_head,
    first_group,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WEIGHTS_DIFFER: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write dK_l = weight_l gradient^T Q_l, summed over the heads of a group.

    One program for COLUMNS keys and a term.
    """
    local_group = tl.program_id(0)
    block = tl.program_id(1)
    term = tl.program_id(2)
    batch, group, _ = locate(first_group + local_group, groups, groups)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    within = tl.arange(0, ROWS)
    grad_k = tl.zeros([COLUMNS, BLOCK], tl.float32)
    lowest = 0
    if CAUSAL:
        lowest = block * COLUMNS // TILE * TILE
    for member in range(0, heads // groups):
        query_head = group * (heads // groups) + member
        from_head = at_head(gradient, local_group * (heads // groups) + member, per_head)
        q_head = at_head(q, term, q_strides[0]) + batch * q_strides[1] + query_head * q_strides[2]
        weight = tl.load(weights + term * heads + query_head)
        for first in range(lowest, queries, ROWS):
            rows = first + within
            offset, width = strip_of(first, queries, keys, CAUSAL, ALIGNED)
            inside = (rows < queries)[:, None] & (columns < width)[None, :]
            tile = from_head + offset + within[:, None] * width + columns[None, :]
            q_rows = load_rows(q_head, rows, q_strides[3], queries, SIZE, BLOCK, EVEN)
            turned = tl.trans(load_scores(tile, inside, 0.0, EVEN).to(q_rows.dtype))
            if WEIGHTS_DIFFER:
                grad_k += weight * tl.dot(turned, q_rows, input_precision=PRECISION)
            else:
                grad_k = tl.dot(turned, q_rows, grad_k, input_precision=PRECISION)
    if not WEIGHTS_DIFFER:
        grad_k *= tl.load(weights + term * heads + group * (heads // groups))
    dk_head = at_head(dk, term, dk_strides[0]) + batch * dk_strides[1] + group * dk_strides[2]
    store_rows(dk_head, grad_k, columns, dk_strides[3], keys, SIZE, BLOCK)
