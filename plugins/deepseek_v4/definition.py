"""The DeepSeek-V4 target by definition, in float64 NumPy: what `audit consistency` holds the model against.

The whole text at once, every position from its whole prefix: there are no caches, chunks or blocks that could be wrong.
Weights are looked up by official checkpoint names, dequantised. This module is independent of the model it judges: it
imports nothing of this package, and nothing of the model imports it. Slow; not for generating.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Settle: TypeAlias = Callable[[str, int, str, Array, "Array | None"], Array]
"""(op, call, what, index [S, k] of -1 and what each position takes, scores [S, n] they are the largest of, or None) ->
the index to go on with. `contracts.Settle` says more."""


class Weights(Protocol):
    """Tensors by official name, float64 (ids: integers): a dict, or something that reads them when asked for."""

    def __getitem__(self, name: str, /) -> Array: ...


@attrs.frozen
class Sizes:
    """What the definition needs of a config; the names are those of the official `config.json`."""

    vocab_size: int
    hidden_size: int
    compress_ratios: tuple[int, ...]
    num_hash_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e4
    compress_rope_theta: float = 1.6e5
    yarn: tuple[float, float, float, float] | None = None  # original length, factor, beta fast, beta slow

    @classmethod
    def of(cls, config: Any) -> Sizes:
        """From a checked `config.ModelConfig`."""
        c, yarn = config, config.yarn
        return cls(
            vocab_size=c.vocab_size, hidden_size=c.hidden, compress_ratios=c.ratios, num_hash_layers=c.hash_layers,
            num_attention_heads=c.heads, head_dim=c.head_dim, qk_rope_head_dim=c.rope_dim, q_lora_rank=c.q_rank,
            o_groups=c.o_groups, o_lora_rank=c.o_rank, sliding_window=c.window, n_routed_experts=c.experts,
            num_experts_per_tok=c.experts_per_token, moe_intermediate_size=c.expert_width,
            index_n_heads=c.index_heads, index_head_dim=c.index_dim, index_topk=c.index_topk,
            routed_scaling_factor=c.routed_scale, swiglu_limit=c.swiglu_limit, hc_mult=c.hc_mult,
            hc_sinkhorn_iters=c.hc_iters, hc_eps=c.hc_eps, rms_norm_eps=c.rms_eps, rope_theta=c.rope_theta,
            compress_rope_theta=c.compress_rope_theta,
            yarn=None if yarn is None else (yarn.original, yarn.factor, yarn.beta_fast, yarn.beta_slow),
        )  # fmt: skip


def rms(x: Array, weight: Array | None = None, eps: float = 1e-6) -> Array:
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    scaled: Array = y if weight is None else y * weight
    return scaled


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array, axis: int = -1) -> Array:
    top = np.max(x, axis=axis, keepdims=True)
    e = np.exp(x - np.where(np.isfinite(top), top, 0))
    share: Array = e / e.sum(axis=axis, keepdims=True)
    return share


def frequencies(size: Sizes, compressed: bool) -> Array:
    """Radians a position for each pair of rotary channels (5.4)."""
    width = size.qk_rope_head_dim
    base = size.compress_rope_theta if compressed else size.rope_theta
    f = 1.0 / (base ** (np.arange(0, width, 2) / width))
    if compressed and size.yarn:
        original, factor, fast, slow = size.yarn

        def corner(turns: float) -> float:
            return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low: float = max(math.floor(corner(fast)), 0)
        high: float = min(math.ceil(corner(slow)), width - 1)
        if low == high:
            high += 0.001
        ramp = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
        f = f / factor * ramp + f * (1 - ramp)
    return f


def rope(x: Array, position: Array, f: Array, sign: int = 1) -> Array:
    """Turns the trailing interleaved pairs of x [S, D] or [S, H, D] by sign * position * f."""
    width = 2 * len(f)
    a, b = x[..., -width::2], x[..., -width + 1 :: 2]
    angle = sign * np.multiply.outer(np.asarray(position, float), f)
    if x.ndim == 3:
        angle = angle[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    out = x.copy()
    out[..., -width::2] = a * cos - b * sin
    out[..., -width + 1 :: 2] = a * sin + b * cos
    return out


def hyper_coefficients(streams: Array, W: Weights, name: str, size: Sizes) -> tuple[Array, Array, Array]:
    """streams [S, n, d] -> pre [S, n], post [S, n], comb [S, n, n] (5.2)."""
    n, eps = size.hc_mult, size.hc_eps
    fn, base, scale = W[f"{name}_fn"], W[f"{name}_base"], W[f"{name}_scale"]
    m = rms(streams.reshape(streams.shape[0], -1), eps=size.rms_norm_eps) @ fn.T
    pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
    post = 2 * sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = softmax((m[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)) + eps
    comb = comb / (comb.sum(1, keepdims=True) + eps)
    for _ in range(size.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(2, keepdims=True) + eps)
        comb = comb / (comb.sum(1, keepdims=True) + eps)
    return pre, post, comb


def hyper_expand(y: Array, streams: Array, post: Array, comb: Array) -> Array:
    kept: Array = np.einsum("sjk,sjd->skd", comb, streams)
    return post[:, :, None] * y[:, None, :] + kept


def hyper_head(streams: Array, W: Weights, prefix: str, size: Sizes) -> Array:
    """streams [S, n, d] -> [S, d], before the final norm."""
    z = rms(streams.reshape(streams.shape[0], -1), eps=size.rms_norm_eps) @ W[f"{prefix}hc_head_fn"].T
    pre = sigmoid(z * W[f"{prefix}hc_head_scale"] + W[f"{prefix}hc_head_base"]) + size.hc_eps
    collapsed: Array = (pre[:, :, None] * streams).sum(1)
    return collapsed


def compress(x: Array, W: Weights, prefix: str, ratio: int, width: int, f: Array, eps: float) -> Array:
    """x [S, d] -> the rows of all complete windows [S // ratio, width] (5.7)."""
    windows = x.shape[0] // ratio
    if windows == 0:
        return np.zeros((0, width))
    kv = (x @ W[f"{prefix}wkv.weight"].T)[: windows * ratio].reshape(windows, ratio, -1)
    gate = (x @ W[f"{prefix}wgate.weight"].T)[: windows * ratio].reshape(windows, ratio, -1) + W[f"{prefix}ape"]
    if ratio == 4:
        slots_kv = np.zeros((windows, 2 * ratio, width))
        slots_gate = np.full((windows, 2 * ratio, width), -np.inf)
        slots_kv[:, ratio:], slots_gate[:, ratio:] = kv[:, :, width:], gate[:, :, width:]
        slots_kv[1:, :ratio], slots_gate[1:, :ratio] = kv[:-1, :, :width], gate[:-1, :, :width]
        kv, gate = slots_kv, slots_gate
    rows = rms((kv * softmax(gate, 1)).sum(1), W[f"{prefix}norm.weight"], eps)
    return rope(rows, np.arange(windows) * ratio, f)


class Choices:
    """Gives every choice of a forward its number, shows it to `settle`, and takes what that answers."""

    def __init__(self, settle: Settle | None) -> None:
        self._settle, self._calls = settle, dict[str, int]()

    def next(self, op: str) -> int:
        """The number of this call of an op."""
        self._calls[op] = call = self._calls.get(op, -1) + 1
        return call

    def __call__(self, op: str, call: int, what: str, index: Array, scores: Array | None = None) -> Array:
        return index if self._settle is None else self._settle(op, call, what, index, scores)


def listed(mask: Array) -> Array:
    """bool [S, n] -> int [S, most]: the numbers that are true, ascending, then -1."""
    most = int(mask.sum(1).max(initial=0))
    order = np.argsort(~mask, axis=1, kind="stable")[:, :most]
    listed: Array = np.where(np.take_along_axis(mask, order, 1), order, -1)
    return listed


def marked(index: Array, count: int) -> Array:
    """The reverse of `listed`: bool [S, count]."""
    mask = np.zeros((len(index), count + 1), dtype=bool)
    np.put_along_axis(mask, np.where(index < 0, count, index), True, 1)
    return mask[:, :count]


def ffn(
    x: Array, ids: Array, W: Weights, prefix: str, hashed: bool, size: Sizes, choices: Choices | None = None
) -> Array:
    """The mixture of experts (5.9)."""
    choices = choices or Choices(None)
    z = x @ W[f"{prefix}gate.weight"].T
    score = np.sqrt(np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0))
    if hashed:
        index = W[f"{prefix}gate.tid2eid"][ids].astype(int)
        choices("route_hash", choices.next("route_hash"), "experts", index)
    else:
        biased = score + W[f"{prefix}gate.bias"]
        index = np.argsort(-biased, axis=-1, kind="stable")[:, : size.num_experts_per_tok]
        index = choices("route_scores", choices.next("route_scores"), "experts", index, biased)
    share = np.take_along_axis(score, index, 1)
    share = share / (share.sum(1, keepdims=True) + 1e-20) * size.routed_scaling_factor

    def expert(rows: Array, q: str) -> Array:
        gate = np.minimum(rows @ W[f"{q}w1.weight"].T, size.swiglu_limit)
        up = np.clip(rows @ W[f"{q}w3.weight"].T, -size.swiglu_limit, size.swiglu_limit)
        down: Array = (gate * sigmoid(gate) * up) @ W[f"{q}w2.weight"].T
        return down

    out = expert(x, f"{prefix}shared_experts.")
    for e in range(size.n_routed_experts):
        rows = np.flatnonzero((index == e).any(1))
        if rows.size:
            weight = np.where(index == e, share, 0).sum(1)[rows]
            out[rows] += weight[:, None] * expert(x[rows], f"{prefix}experts.{e}.")
    return out


def attention(x: Array, W: Weights, prefix: str, ratio: int, size: Sizes, choices: Choices) -> Array:
    """The attention branch over the sequence (5.5 - 5.8)."""
    S, H, D = x.shape[0], size.num_attention_heads, size.head_dim
    position, eps = np.arange(S), size.rms_norm_eps
    f = frequencies(size, ratio > 0)
    low = rms(x @ W[f"{prefix}wq_a.weight"].T, W[f"{prefix}q_norm.weight"], eps)
    query = rope(rms((low @ W[f"{prefix}wq_b.weight"].T).reshape(S, H, D), eps=eps), position, f)
    keys = rope(rms(x @ W[f"{prefix}wkv.weight"].T, W[f"{prefix}kv_norm.weight"], eps), position, f)
    seen = (position[None] <= position[:, None]) & (position[None] > position[:, None] - size.sliding_window)
    call = choices.next("attend_rows")
    choices("attend_rows", call, "window", listed(seen))
    if ratio:
        rows = compress(x, W, f"{prefix}compressor.", ratio, D, f, eps)
        visible = np.arange(rows.shape[0])[None] < ((position + 1) // ratio)[:, None]
        if ratio == 4 and rows.shape[0]:
            visible = _chosen(x, low, W, prefix, visible, f, size, choices)
        choices("attend_rows", call, "rows", listed(visible))
        keys, seen = np.concatenate([keys, rows]), np.concatenate([seen, visible], 1)
    out = np.zeros((S, H, D))
    sink = W[f"{prefix}attn_sink"][:, None]
    for t in range(S):  # row by row: a long context would not fit otherwise
        mine = keys[seen[t]]
        score = query[t] @ mine.T * D**-0.5
        top = np.maximum(score.max(-1, keepdims=True), sink)
        e = np.exp(score - top)
        out[t] = (e / (e.sum(-1, keepdims=True) + np.exp(sink - top))) @ mine
    out = rope(out, position, f, -1).reshape(S, size.o_groups, -1)
    wo_a = W[f"{prefix}wo_a.weight"].reshape(size.o_groups, size.o_lora_rank, -1)
    projected: Array = np.einsum("sgd,grd->sgr", out, wo_a).reshape(S, -1) @ W[f"{prefix}wo_b.weight"].T
    return projected


def _chosen(
    x: Array, low: Array, W: Weights, prefix: str, visible: Array, f: Array, size: Sizes, choices: Choices
) -> Array:
    """bool [S, rows]: each query's top-k of the rows it sees, the lower row on ties (5.8)."""
    p, Hi, Di = f"{prefix}indexer.", size.index_n_heads, size.index_head_dim
    S, k = x.shape[0], size.index_topk
    keys = compress(x, W, f"{p}compressor.", 4, Di, f, size.rms_norm_eps)
    query = rope((low @ W[f"{p}wq_b.weight"].T).reshape(S, Hi, Di), np.arange(S), f)
    weight = (x @ W[f"{p}weights_proj.weight"].T) * (Di**-0.5 * Hi**-0.5)
    scores, chosen = np.full(visible.shape, -np.inf), visible.copy()
    for t in range(S):
        count = int(visible[t].sum())
        scores[t, :count] = weight[t] @ np.maximum(query[t] @ keys[:count].T, 0)
        if count > k:
            chosen[t] = False
            chosen[t, np.argsort(-scores[t, :count], kind="stable")[:k]] = True
    index = choices("indexer_select", choices.next("indexer_select"), "rows", listed(chosen), scores)
    return marked(index, visible.shape[1])


def forward(
    ids: Array,
    W: Weights,
    size: Sizes,
    taps: Sequence[int] = (),
    settle: Settle | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Array, Array | None]:
    """ids [S] -> logits [S, V], and the tapped layers' outputs averaged over the streams [S, taps * d], or None.

    progress(done, layers) is called after each layer.
    """
    choices = Choices(settle)
    streams = np.repeat(W["embed.weight"][ids][:, None, :], size.hc_mult, 1)
    outputs: dict[int, Array] = {-1: streams.mean(1)}
    for i, ratio in enumerate(size.compress_ratios):
        p = f"layers.{i}."
        pre, post, comb = hyper_coefficients(streams, W, f"{p}hc_attn", size)
        x = rms((pre[:, :, None] * streams).sum(1), W[f"{p}attn_norm.weight"], size.rms_norm_eps)
        streams = hyper_expand(attention(x, W, f"{p}attn.", ratio, size, choices), streams, post, comb)
        pre, post, comb = hyper_coefficients(streams, W, f"{p}hc_ffn", size)
        x = rms((pre[:, :, None] * streams).sum(1), W[f"{p}ffn_norm.weight"], size.rms_norm_eps)
        y = ffn(x, ids, W, f"{p}ffn.", i < size.num_hash_layers, size, choices)
        streams = hyper_expand(y, streams, post, comb)
        if i in taps:
            outputs[i] = streams.mean(1)
        if progress is not None:
            progress(i + 1, len(size.compress_ratios))
    h = rms(hyper_head(streams, W, "", size), W["norm.weight"], size.rms_norm_eps)
    tapped = np.concatenate([outputs[i] for i in taps], -1) if taps else None
    return h @ W["head.weight"].T, tapped
