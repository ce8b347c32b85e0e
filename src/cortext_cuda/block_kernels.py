"""Triton kernels of day layers and of a Transformer's blocks, in training on CUDA.

Rows are packed: those of trial b are `starts[b]` to `starts[b] + lengths[b] - 1`. Whether dropout
keeps a value depends on its index and on two seeds alone, so that the gradient draws the same mask
again instead of reading it.

N rows, D hidden units, H heads, E units of a head, i frames (rows of a trial), j keys.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def kept(index, seeds, threshold):
    """Return True with probability 1 - threshold / 2^24 for each index.

    The hash is `lowbias32` of Chris Wellons' hash prospector, with a second seed inside. Philox
    takes ten times as many operations, more than the products of an attention.
    """
    x = index.to(tl.uint32) * 0x9E3779B1 + tl.load(seeds).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = x ^ tl.load(seeds + 1).to(tl.uint32)
    x = (x ^ (x >> 15)) * 0x846CA68B
    return ((x ^ (x >> 16)) >> 8).to(tl.int32) >= threshold


@triton.jit
def tile(qkv, rows, inside, e, WIDTH: tl.constexpr, PART: tl.constexpr):
    """Load the queries (PART 0), keys (1) or values (2) of some rows, [rows, E]."""
    at = rows[:, None].to(tl.int64) * (3 * WIDTH) + PART * WIDTH + e[None, :]
    return tl.load(qkv + at, mask=inside[:, None], other=0.0)


@triton.jit
def score(q, k, i, j, length, context, values, scale, chunk, MOST: tl.constexpr):
    """Return the scores [i, j], -inf where frame i does not see key j."""
    distance = i[:, None] - j[None, :]
    begin = (i - i % chunk)[:, None]
    seen = (j[None, :] < begin + chunk) & (j[None, :] >= begin - context)
    seen = seen & (j[None, :] < length)
    bias = tl.load(values + tl.minimum(tl.maximum(distance, -MOST), MOST) + MOST)
    return tl.where(seen, tl.dot(q, tl.trans(k)) * scale + bias, float("-inf"))


@triton.jit
def attend(
    qkv, values, context, starts, lengths, seeds, found, log_sums,
    n_most, chunk, scale, keep_scale, THRESHOLD: tl.constexpr,
    MOST: tl.constexpr, HEADS: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Attend for a block of frames of one trial and head."""
    WIDTH: tl.constexpr = HEADS * E
    pair = tl.program_id(1)
    length = tl.load(lengths + pair // HEADS)
    first = tl.program_id(0) * BLOCK
    if first >= length:
        return
    start = tl.load(starts + pair // HEADS)
    context = tl.load(context)
    i = first + tl.arange(0, BLOCK)
    e = (pair % HEADS) * E + tl.arange(0, E)
    q = tile(qkv, start + i, i < length, e, WIDTH, 0)
    most = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    sums = tl.zeros([BLOCK, E], tl.float32)
    low = tl.maximum(first - first % chunk - context, 0) // BLOCK * BLOCK
    last = tl.minimum(first + BLOCK, length) - 1
    high = tl.minimum(last - last % chunk + chunk, length)
    for at in range(low, high, BLOCK):
        j = at + tl.arange(0, BLOCK)
        k = tile(qkv, start + j, j < length, e, WIDTH, 1)
        v = tile(qkv, start + j, j < length, e, WIDTH, 2)
        s = score(q, k, i, j, length, context, values, scale, chunk, MOST)
        higher = tl.maximum(most, tl.max(s, 1))
        weight = tl.exp(s - higher[:, None])
        shrink = tl.exp(most - higher)
        total = total * shrink + tl.sum(weight, 1)
        if THRESHOLD > 0:
            index = (pair * n_most + i[:, None]) * n_most + j[None, :]
            weight = tl.where(kept(index, seeds, THRESHOLD), weight * keep_scale, 0.0)
        sums = tl.dot(weight.to(v.dtype), v, sums * shrink[:, None])
        most = higher
    total = tl.maximum(total, 1.0)  # at least 1, except in rows past the end: they have no keys
    at = (start + i)[:, None].to(tl.int64) * WIDTH + e[None, :]
    tl.store(found + at, (sums / total[:, None]).to(found.dtype.element_ty), (i < length)[:, None])
    tl.store(log_sums + pair * n_most + i, most + tl.log(total), i < length)


@triton.jit
def attend_d_queries(
    qkv, values, context, starts, lengths, seeds, found, log_sums, d_found, d_qkv, deltas,
    d_scores, n_most, chunk, scale, keep_scale, THRESHOLD: tl.constexpr,
    MOST: tl.constexpr, HEADS: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block's queries and, by distance, of its scores.

    `d_scores` is [pairs, frames, distances], the distance i - j beginning at 1 - chunk.
    """
    WIDTH: tl.constexpr = HEADS * E
    pair = tl.program_id(1)
    length = tl.load(lengths + pair // HEADS)
    first = tl.program_id(0) * BLOCK
    if first >= length:
        return
    start = tl.load(starts + pair // HEADS)
    context = tl.load(context)
    i = first + tl.arange(0, BLOCK)
    e = (pair % HEADS) * E + tl.arange(0, E)
    inside = i < length
    q = tile(qkv, start + i, inside, e, WIDTH, 0)
    at = (start + i)[:, None].to(tl.int64) * WIDTH + e[None, :]
    d = tl.load(d_found + at, inside[:, None], 0.0)
    delta = tl.sum(d.to(tl.float32) * tl.load(found + at, inside[:, None], 0.0).to(tl.float32), 1)
    tl.store(deltas + pair * n_most + i, delta, inside)
    log_sum = tl.load(log_sums + pair * n_most + i, inside, 0.0)
    d_q = tl.zeros([BLOCK, E], tl.float32)
    low = tl.maximum(first - first % chunk - context, 0) // BLOCK * BLOCK
    last = tl.minimum(first + BLOCK, length) - 1
    high = tl.minimum(last - last % chunk + chunk, length)
    n_distances = n_most + chunk - 1
    row = (pair.to(tl.int64) * n_most + i[:, None]) * n_distances
    for at in range(low, high, BLOCK):
        j = at + tl.arange(0, BLOCK)
        k = tile(qkv, start + j, j < length, e, WIDTH, 1)
        v = tile(qkv, start + j, j < length, e, WIDTH, 2)
        s = score(q, k, i, j, length, context, values, scale, chunk, MOST)
        weight = tl.exp(s - log_sum[:, None])
        d_weight = tl.dot(d, tl.trans(v))
        if THRESHOLD > 0:
            index = (pair * n_most + i[:, None]) * n_most + j[None, :]
            d_weight = tl.where(kept(index, seeds, THRESHOLD), d_weight * keep_scale, 0.0)
        d_s = (weight * (d_weight - delta[:, None])).to(k.dtype)
        d_q = tl.dot(d_s, k, d_q)
        distance = i[:, None] - j[None, :] + (chunk - 1)
        stored = inside[:, None] & (j < length)[None, :] & (distance >= 0)
        tl.store(d_scores + row + distance, d_s, stored)
    at = (start + i)[:, None].to(tl.int64) * (3 * WIDTH) + e[None, :]
    tl.store(d_qkv + at, (d_q * scale).to(d_qkv.dtype.element_ty), inside[:, None])


@triton.jit
def attend_d_keys(
    qkv, values, context, starts, lengths, seeds, log_sums, d_found, d_qkv, deltas,
    n_most, chunk, scale, keep_scale, THRESHOLD: tl.constexpr,
    MOST: tl.constexpr, HEADS: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block's keys and values."""
    WIDTH: tl.constexpr = HEADS * E
    pair = tl.program_id(1)
    length = tl.load(lengths + pair // HEADS)
    first = tl.program_id(0) * BLOCK
    if first >= length:
        return
    start = tl.load(starts + pair // HEADS)
    context = tl.load(context)
    j = first + tl.arange(0, BLOCK)
    e = (pair % HEADS) * E + tl.arange(0, E)
    k = tile(qkv, start + j, j < length, e, WIDTH, 1)
    v = tile(qkv, start + j, j < length, e, WIDTH, 2)
    d_k = tl.zeros([BLOCK, E], tl.float32)
    d_v = tl.zeros([BLOCK, E], tl.float32)
    low = (first - first % chunk) // BLOCK * BLOCK
    high = tl.minimum(first + BLOCK + context + chunk - 1, length)
    for at in range(low, high, BLOCK):
        i = at + tl.arange(0, BLOCK)
        inside = i < length
        q = tile(qkv, start + i, inside, e, WIDTH, 0)
        at_i = (start + i)[:, None].to(tl.int64) * WIDTH + e[None, :]
        d = tl.load(d_found + at_i, inside[:, None], 0.0)
        log_sum = tl.load(log_sums + pair * n_most + i, inside, 0.0)
        delta = tl.load(deltas + pair * n_most + i, inside, 0.0)
        s = score(q, k, i, j, length, context, values, scale, chunk, MOST)
        weight = tl.where(inside[:, None], tl.exp(s - log_sum[:, None]), 0.0)
        d_weight = tl.dot(d, tl.trans(v))
        dropped = weight
        if THRESHOLD > 0:
            index = (pair * n_most + i[:, None]) * n_most + j[None, :]
            keep = kept(index, seeds, THRESHOLD)
            dropped = tl.where(keep, weight * keep_scale, 0.0)
            d_weight = tl.where(keep, d_weight * keep_scale, 0.0)
        d_v = tl.dot(tl.trans(dropped.to(d.dtype)), d, d_v)
        d_s = (weight * (d_weight - delta[:, None])).to(q.dtype)
        d_k = tl.dot(tl.trans(d_s), q, d_k)
    at = (start + j)[:, None].to(tl.int64) * (3 * WIDTH) + e[None, :]
    inside = (j < length)[:, None]
    tl.store(d_qkv + WIDTH + at, (d_k * scale).to(d_qkv.dtype.element_ty), inside)
    tl.store(d_qkv + 2 * WIDTH + at, d_v.to(d_qkv.dtype.element_ty), inside)


@triton.jit
def add_norm(
    x, places, branch, shift, weight, bias, seeds, added, normed, means, scales, n_rows,
    keep_scale, epsilon, THRESHOLD: tl.constexpr, GATHER: tl.constexpr, BRANCH: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add dropout(branch + shift) to x [N, D]; then LayerNorm. Rows may be gathered from x."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDE)
    own, used = row < n_rows, (d < D)[None, :]
    inside = own[:, None] & used
    at = row[:, None] * D + d[None, :]
    if GATHER:
        place = tl.load(places + row, own, 0)[:, None].to(tl.int64)
        value = tl.load(x + place * D + d[None, :], inside, 0.0).to(tl.float32)
    else:
        value = tl.load(x + at, inside, 0.0).to(tl.float32)
    if BRANCH:
        more = tl.load(branch + at, inside, 0.0).to(tl.float32)
        more += tl.load(shift + d, d < D, 0.0)[None, :]
        if THRESHOLD > 0:
            more = tl.where(kept(at, seeds, THRESHOLD), more * keep_scale, 0.0)
        value += more
        tl.store(added + at, value, inside)
    mean = tl.sum(value, 1) / D
    centred = tl.where(used, value - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / D + epsilon)
    gain = tl.load(weight + d, d < D, 0.0)[None, :]
    found = centred * scale[:, None] * gain + tl.load(bias + d, d < D, 0.0)[None, :]
    tl.store(normed + at, found.to(normed.dtype.element_ty), inside)
    tl.store(means + row, mean, own)
    tl.store(scales + row, scale, own)


@triton.jit
def add_norm_d(
    value, weight, seeds, means, scales, d_added, d_normed, d_x, d_branch, partial, n_rows,
    keep_scale, THRESHOLD: tl.constexpr, BRANCH: tl.constexpr, ADDED: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of `add_norm`.

    Those of weight, bias and shift are [3, programs, D], to be added up.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDE)
    own = row < n_rows
    at = row[:, None] * D + d[None, :]
    inside = own[:, None] & (d < D)[None, :]
    scale = tl.load(scales + row, own, 0.0)[:, None]
    centred = tl.load(value + at, inside, 0.0) - tl.load(means + row, own, 0.0)[:, None]
    unit = tl.where(inside, centred * scale, 0.0)
    d_found = tl.load(d_normed + at, inside, 0.0).to(tl.float32)
    partial += tl.program_id(0) * D + d
    step = tl.num_programs(0) * D
    tl.store(partial, tl.sum(d_found * unit, 0), d < D)
    tl.store(partial + step, tl.sum(d_found, 0), d < D)
    d_unit = d_found * tl.load(weight + d, d < D, 0.0)[None, :]
    along = tl.sum(d_unit * unit, 1)[:, None] / D
    found = (d_unit - tl.sum(d_unit, 1)[:, None] / D - unit * along) * scale
    if ADDED:
        found += tl.load(d_added + at, inside, 0.0)
    tl.store(d_x + at, found, inside)
    if BRANCH:
        if THRESHOLD > 0:
            found = tl.where(kept(at, seeds, THRESHOLD), found * keep_scale, 0.0)
        tl.store(d_branch + at, found.to(d_branch.dtype.element_ty), inside)
        tl.store(partial + 2 * step, tl.sum(tl.where(inside, found, 0.0), 0), d < D)


@triton.jit
def norm_d_weights(
    x, places, means, scales, d_normed, partial, n_rows, D, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of weight and bias of a LayerNorm of gathered rows.

    They are [2, programs, D], to be added up.
    """
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    d_weight = tl.zeros([COLUMNS], tl.float32)
    d_bias = tl.zeros([COLUMNS], tl.float32)
    for part in range(PARTS):
        row = (tl.program_id(0) * PARTS + part) * ROWS + tl.arange(0, ROWS)
        own = row < n_rows
        inside = own[:, None] & (d < D)[None, :]
        place = tl.load(places + row, own, 0)[:, None].to(tl.int64)
        value = tl.load(x + place * D + d[None, :], inside, 0.0).to(tl.float32)
        centred = value - tl.load(means + row, own, 0.0)[:, None]
        found = tl.load(d_normed + row[:, None] * D + d[None, :], inside, 0.0).to(tl.float32)
        d_weight += tl.sum(found * centred * tl.load(scales + row, own, 0.0)[:, None], 0)
        d_bias += tl.sum(found, 0)
    partial += tl.program_id(0) * D + d
    tl.store(partial, d_weight, d < D)
    tl.store(partial + tl.num_programs(0) * D, d_bias, d < D)


@triton.jit
def gelu(
    x, shift, seeds, found, n_rows, D, keep_scale, THRESHOLD: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute dropout(GELU(x + shift)) for x [N, D], with the exact GELU."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = row[:, None] * D + d[None, :]
    inside = (row < n_rows)[:, None] & (d < D)[None, :]
    value = tl.load(x + at, inside, 0.0).to(tl.float32)
    value += tl.load(shift + d, d < D, 0.0)[None, :]
    value = value * 0.5 * (1 + tl.erf(value * 0.7071067811865476))
    if THRESHOLD > 0:
        value = tl.where(kept(at, seeds, THRESHOLD), value * keep_scale, 0.0)
    tl.store(found + at, value.to(found.dtype.element_ty), inside)


@triton.jit
def gelu_d(
    x, shift, seeds, d_found, d_x, partial, n_rows, D, keep_scale, THRESHOLD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of `gelu`; that of the shift is [programs, D], to be added up."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = row[:, None] * D + d[None, :]
    inside = (row < n_rows)[:, None] & (d < D)[None, :]
    value = tl.load(x + at, inside, 0.0).to(tl.float32)
    value += tl.load(shift + d, d < D, 0.0)[None, :]
    found = tl.load(d_found + at, inside, 0.0).to(tl.float32)
    if THRESHOLD > 0:
        found = tl.where(kept(at, seeds, THRESHOLD), found * keep_scale, 0.0)
    density = tl.exp(-0.5 * value * value) * 0.3989422804014327
    found *= 0.5 * (1 + tl.erf(value * 0.7071067811865476)) + value * density
    tl.store(d_x + at, found.to(d_x.dtype.element_ty), inside)
    tl.store(partial + tl.program_id(0) * D + d, tl.sum(found, 0), d < D)


@triton.jit
def softsign(
    x, seeds, found, n_values, keep_scale, THRESHOLD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute dropout(x / (1 + |x|))."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n_values, 0.0).to(tl.float32)
    value = value / (1 + tl.abs(value))
    if THRESHOLD > 0:
        value = tl.where(kept(at, seeds, THRESHOLD), value * keep_scale, 0.0)
    tl.store(found + at, value.to(found.dtype.element_ty), at < n_values)


@triton.jit
def softsign_d(
    x, seeds, d_found, d_x, n_values, keep_scale, THRESHOLD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute the gradient of `softsign`."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    below = 1 + tl.abs(tl.load(x + at, at < n_values, 0.0).to(tl.float32))
    found = tl.load(d_found + at, at < n_values, 0.0).to(tl.float32) / (below * below)
    if THRESHOLD > 0:
        found = tl.where(kept(at, seeds, THRESHOLD), found * keep_scale, 0.0)
    tl.store(d_x + at, found.to(d_x.dtype.element_ty), at < n_values)
