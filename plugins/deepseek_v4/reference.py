"""What each op of `ops.py` means, in plain MLX operations that run on CPU, CUDA and Metal alike.

These are written to be held against the spec, and to give a row the same bits whatever other rows are computed with it
as long as the matrix products underneath do: attention gathers each query's own keys in order of position, and sums
that run over keys are matrix products, so that masked keys only ever add exact zeros at the end. They are not fast.

r rows, d hidden size, n residual streams, H heads, D head width, R rotary channels.
"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear

# Long forwards are cut into groups of queries so that temporaries stay near this many elements.
TEMPORARY = 1 << 25
QUERIES = 32
SORT_FROM = 64
"""From this many (row, expert) pairs on, pairs are sorted by expert, so that an expert's rows are read together."""


# -------------------------------------------------------------------------------------------- hyper-connections (5.2)


def _stream_logits(streams: mx.array, fn: mx.array, eps: float) -> mx.array:
    """rms(flatten(X)) @ fn^T, normalised after the product as the official code does; float32 [r, outputs]."""
    flat = streams.reshape(streams.shape[0], -1).astype(mx.float32)  # [r, n * d]
    return (flat @ fn.T) * mx.rsqrt(mx.mean(flat * flat, axis=-1, keepdims=True) + eps)


def _collapse(streams: mx.array, pre: mx.array) -> mx.array:
    """sum_i pre_i X_i: [r, n, d], [r, n] -> [r, d] in the streams' dtype."""
    return (pre[:, None, :] @ streams.astype(mx.float32))[:, 0].astype(streams.dtype)


def hyper_mix(
    streams: mx.array, fn: mx.array, base: mx.array, scale: mx.array, eps: float, hc_eps: float, iters: int
) -> tuple[mx.array, mx.array, mx.array]:
    """streams [r, n, d], fn [(2 + n) n, n d], base [(2 + n) n], scale [3] -> mixed [r, d], post [r, n], comb [r, n, n].

    hc_eps and iters are those of the Sinkhorn normalisation.
    """
    r, n, _ = streams.shape
    m = _stream_logits(streams, fn, eps)
    pre = mx.sigmoid(m[:, :n] * scale[0] + base[:n]) + hc_eps
    post = 2 * mx.sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = (m[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(r, n, n)  # [row, from j, to k]
    comb = mx.softmax(comb, axis=2) + hc_eps
    comb = comb / (comb.sum(axis=1, keepdims=True) + hc_eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(axis=2, keepdims=True) + hc_eps)
        comb = comb / (comb.sum(axis=1, keepdims=True) + hc_eps)
    return _collapse(streams, pre), post, comb


def hyper_expand(branch: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> mx.array:
    """X'_k = post_k y + sum_j comb_jk X_j: branch [r, d], streams [r, n, d] -> [r, n, d]."""
    spread = post[:, :, None] * branch[:, None, :].astype(mx.float32)
    kept = comb.swapaxes(1, 2) @ streams.astype(mx.float32)
    return (spread + kept).astype(streams.dtype)


def hyper_head(streams: mx.array, fn: mx.array, base: mx.array, scale: mx.array, eps: float, hc_eps: float) -> mx.array:
    """streams [r, n, d], fn [n, n d], base [n], scale [1] -> [r, d] float32, before the final norm."""
    pre = mx.sigmoid(_stream_logits(streams, fn, eps) * scale + base) + hc_eps
    return _collapse(streams.astype(mx.float32), pre)


# ------------------------------------------------------------------------------------------- norms, projections, rotary


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """Computed in float32 with a float32 weight, cast once at the end (5.3)."""
    return mx.fast.rms_norm(x.astype(mx.float32), weight, eps).astype(x.dtype)


def project_rows(
    x: mx.array, weight: mx.array, eps: float, linears: tuple[Linear, ...]
) -> tuple[mx.array, tuple[mx.array, ...]]:
    """x [r, d] -> (RMSNorm(x; weight) [r, d], one [r, out] for each matrix)."""
    normed = rms_norm(x, weight, eps)
    return normed, tuple(linear(normed) for linear in linears)


def small_rows_matmul(x: mx.array, linear: Linear) -> mx.array:
    """x [r, in] -> [r, out]."""
    return linear(x)


def grouped_rows_matmul(x: mx.array, linear: Linear) -> mx.array:
    """x [r, g, in], linear [g, out, in] -> [r, g, out]."""
    return linear(x.swapaxes(0, 1)).swapaxes(0, 1)


def rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Interleaved pairs of the last 2 * cos.shape[-1] channels turned by their angles (5.4); cos, sin broadcast."""
    width = 2 * cos.shape[-1]
    kept, turned = x[..., :-width], x[..., -width:].astype(mx.float32)
    a, b = turned[..., 0::2], turned[..., 1::2]
    turned = mx.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(turned.shape)
    return mx.concatenate([kept, turned.astype(x.dtype)], axis=-1)


def norm_rotate(
    x: mx.array, cos: mx.array, sin: mx.array, eps: float | None = None, weight: mx.array | None = None
) -> mx.array:
    """x [r, h, D], cos and sin [r, R / 2] -> [r, h, D]. eps None: no norm. weight None: a norm without weight."""
    y = x.astype(mx.float32)
    if eps is not None:
        y = mx.fast.rms_norm(y, weight, eps)
    return rotate(y, cos[:, None], sin[:, None]).astype(x.dtype)


# ------------------------------------------------------------------------------------------------ compressed rows (5.7)


def pool_windows(kv: mx.array, gate: mx.array, norm: mx.array, eps: float, cos: mx.array, sin: mx.array) -> mx.array:
    """kv, gate [m, slots, D] float32 of m closed windows (gate with `ape`, -inf for absent slots) -> rows [m, D].

    The softmax runs over the slots, for every channel on its own. The row is rotated by the position of the first
    token of its window.
    """
    share = mx.exp(gate - gate.max(axis=1, keepdims=True))
    pooled = (kv * share).sum(axis=1) / share.sum(axis=1)
    return rotate(mx.fast.rms_norm(pooled, norm, eps), cos, sin)


# ----------------------------------------------------------------------------------------------------- selection (5.8)


def top_mask(scores: mx.array, k: int) -> mx.array:
    """The k largest of each row, of equal ones those of lower index: scores [r, n] -> bool [r, n]."""
    if k >= scores.shape[-1]:
        return mx.ones(scores.shape, dtype=mx.bool_)
    least = mx.topk(scores, k, axis=-1).min(axis=-1, keepdims=True)
    above, level = scores > least, scores == least
    missing = k - above.sum(axis=-1, keepdims=True)
    return above | (level & (mx.cumsum(level.astype(mx.int32), axis=-1) <= missing))


def compact(mask: mx.array, width: int) -> mx.array:
    """Indices of the true entries of each row, ascending, then -1: bool [r, n] -> int32 [r, width]."""
    r, n = mask.shape
    place = mx.where(mask, mx.cumsum(mask.astype(mx.int32), axis=-1) - 1, width)
    index = mx.broadcast_to(mx.arange(n, dtype=mx.int32), (r, n))
    return mx.put_along_axis(mx.full((r, width + 1), -1, dtype=mx.int32), place, index, axis=-1)[:, :width]


def visible_rows(visible: mx.array, width: int) -> mx.array:
    """Every row a query sees: visible int32 [r] -> int32 [r, width], 0 .. visible - 1 and then -1."""
    index = mx.arange(width, dtype=mx.int32)
    return mx.where(index < visible[:, None], index, -1)


def indexer_select(query: mx.array, weight: mx.array, keys: mx.array, visible: mx.array, most: int, k: int) -> mx.array:
    """Which compressed rows each query attends to: int32 [r, min(k, span)], ascending, padded with -1.

    query [r, Hi, Di] rotated, weight [r, Hi] float32 (scaled), keys [span, Di], visible int32 [r]: so many first rows
    are visible to that query. A query that sees at most k rows takes all of them, any other its k rows of highest
    score sum_h weight_h relu(<query_h, key>), of equal scores the lower row. most: the largest entry of `visible`,
    known to the host, so that scores nobody needs are not computed; it changes no row's result.
    """
    span = keys.shape[0]
    width = min(k, span)
    if most <= k:
        return visible_rows(visible, width)
    keys = keys.astype(mx.float32).T  # [Di, span]
    index = mx.arange(span, dtype=mx.int32)
    step = max(1, min(QUERIES, TEMPORARY // (query.shape[1] * span)))
    chosen = []
    for at in range(0, query.shape[0], step):
        q, w, seen = query[at : at + step], weight[at : at + step], visible[at : at + step, None]
        hits = mx.maximum(q.astype(mx.float32) @ keys, 0)  # [r, Hi, span]
        scores = (w.astype(mx.float32)[:, None, :] @ hits)[:, 0]  # [r, span]
        shown = index < seen
        best = top_mask(mx.where(shown, scores, -mx.inf), k)
        chosen.append(compact(mx.where(seen <= k, shown, best), width))
    return chosen[0] if len(chosen) == 1 else mx.concatenate(chosen)


# ----------------------------------------------------------------------------------------------------- attention (5.5)


def attend_rows(
    query: mx.array,
    ring: mx.array,
    slots: mx.array,
    rows: mx.array | None,
    select: mx.array | None,
    sink: mx.array,
    cos: mx.array,
    sin: mx.array,
) -> mx.array:
    """Each query over its own keys, one key head that is also the value: [r, H, D] -> [r, H, D], rotation taken back.

    query [r, H, D] rotated; ring [S, D] and slots int32 [r, w]: the window keys of each query, in order of position, -1
    for none; rows [span, D] and select int32 [r, k]: its compressed rows, ascending, -1 for none (both None: none at
    all); sink [H] float32: a raw logit in the denominator only; cos, sin [r, R / 2]: the query's angles.
    """
    count = slots.shape[1] + (0 if select is None else select.shape[1])
    step = max(1, min(QUERIES, TEMPORARY // (count * query.shape[2])))
    scale = query.shape[2] ** -0.5
    out = []
    for at in range(0, query.shape[0], step):
        index = slots[at : at + step]
        keys = ring[mx.maximum(index, 0)]  # [r, w, D]
        shown = index >= 0
        if rows is not None and select is not None:
            index = select[at : at + step]
            keys = mx.concatenate([keys, rows[mx.maximum(index, 0)]], axis=1)  # [r, w + k, D]
            shown = mx.concatenate([shown, index >= 0], axis=1)
        keys = keys.astype(mx.float32)
        scores = (query[at : at + step].astype(mx.float32) * scale) @ keys.swapaxes(1, 2)  # [r, H, w + k]
        scores = mx.where(shown[:, None, :], scores, -mx.inf)
        top = mx.maximum(scores.max(axis=-1, keepdims=True), sink[:, None])  # [r, H, 1]
        mass = mx.exp(scores - top)
        total = mass @ mx.ones((mass.shape[0], count, 1)) + mx.exp(sink[:, None] - top)
        mixed = (mass @ keys) / total  # [r, H, D]
        out.append(rotate(mixed, cos[at : at + step, None], -sin[at : at + step, None]).astype(query.dtype))
    return out[0] if len(out) == 1 else mx.concatenate(out)


# -------------------------------------------------------------------------------------------------------- experts (5.9)


def affinity(x: mx.array, gate: mx.array) -> mx.array:
    """sqrt(softplus(x gate^T)), float32 [r, E]: what experts are chosen by, before the bias."""
    return mx.sqrt(mx.logaddexp(x.astype(mx.float32) @ gate.T, 0))


def _shares(scores: mx.array, index: mx.array, scale: float) -> mx.array:
    picked = mx.take_along_axis(scores, index, axis=-1)
    return picked / (picked.sum(axis=-1, keepdims=True) + 1e-20) * scale


def route_scores(x: mx.array, gate: mx.array, bias: mx.array, k: int, scale: float) -> tuple[mx.array, mx.array]:
    """x [r, d], gate [E, d] float32, bias [E] -> experts int32 [r, k] ascending, weights float32 [r, k].

    The bias steers the choice and does not enter the weights. Equal scores: the lower expert.
    """
    scores = affinity(x, gate)
    index = compact(top_mask(scores + bias, k), k)
    return index, _shares(scores, index, scale)


def route_hash(
    x: mx.array, gate: mx.array, table: mx.array, tokens: mx.array, scale: float
) -> tuple[mx.array, mx.array]:
    """As `route_scores`, the experts being row `tokens[i]` of table int32 [V, k]: each row by its own token."""
    index = table[tokens]
    return index, _shares(affinity(x, gate), index, scale)


def _swiglu(gate: mx.array, up: mx.array, limit: float, dtype: mx.Dtype) -> mx.array:
    """silu(min(gate, limit)) * clip(up, -limit, limit), in float32."""
    gate = mx.minimum(gate.astype(mx.float32), limit)
    up = mx.clip(up.astype(mx.float32), -limit, limit)
    return (gate * mx.sigmoid(gate) * up).astype(dtype)


def swiglu_matmul(gate: mx.array, up: mx.array, down: Linear, limit: float) -> mx.array:
    """gate, up [r, I] -> [r, d]: the shared expert after its first two projections."""
    return down(_swiglu(gate, up, limit, gate.dtype))


def grouped_experts(x: mx.array, index: mx.array, weight: mx.array, bank: ExpertBank, limit: float) -> mx.array:
    """x [r, d], experts int32 [r, k], weights float32 [r, k] -> sum_e w_e FFN_e(x), float32 [r, d]."""
    r, k = index.shape
    if r * k < SORT_FROM:
        lone = x[:, None, None, :]  # [r, 1, 1, d]
        hidden = _swiglu(bank.w1.gather(lone, index), bank.w3.gather(lone, index), limit, x.dtype)
        out = bank.w2.gather(hidden, index)[:, :, 0]  # [r, k, d]
    else:
        pairs = index.reshape(-1)  # [r * k]
        order = mx.argsort(pairs)
        pairs = pairs[order]
        lone = x[order // k][:, None, :]  # [r * k, 1, d]
        hidden = _swiglu(bank.w1.gather(lone, pairs, True), bank.w3.gather(lone, pairs, True), limit, x.dtype)
        out = bank.w2.gather(hidden, pairs, True)[:, 0]
        out = out[mx.argsort(order)].reshape(r, k, -1)
    return (out.astype(mx.float32) * weight[:, :, None]).sum(axis=1)
