"""The V4-native DSpark drafter by definition, in float64 NumPy (spec section 8)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.oracles import deepseek_v4_numpy as v4
from tests.oracles.deepseek_v4_numpy import Array, Sizes, Weights


def attend(x: Array, context: Array, start: int, W: Weights, prefix: str, size: Sizes) -> Array:
    """Block rows x [gamma, d] at positions start .. over the last `window` context rows and the whole block (8.3)."""
    gamma, H, D, eps = x.shape[0], size.num_attention_heads, size.head_dim, size.rms_norm_eps
    first, block, f = max(0, start - size.sliding_window), np.arange(start, start + gamma), v4.frequencies(size, False)

    def keys(rows: Array, position: Array) -> Array:
        return v4.rope(v4.rms(rows @ W[f"{prefix}wkv.weight"].T, W[f"{prefix}kv_norm.weight"], eps), position, f)

    K = np.concatenate([keys(context[first:], np.arange(first, start)), keys(x, block)])
    low = v4.rms(x @ W[f"{prefix}wq_a.weight"].T, W[f"{prefix}q_norm.weight"], eps)
    query = v4.rope(v4.rms((low @ W[f"{prefix}wq_b.weight"].T).reshape(gamma, H, D), eps=eps), block, f)
    score = np.einsum("shd,td->hst", query, K) * D**-0.5
    sink = W[f"{prefix}attn_sink"][:, None, None]
    top = np.maximum(score.max(-1, keepdims=True), sink)
    e = np.exp(score - top)
    share = e / (e.sum(-1, keepdims=True) + np.exp(sink - top))
    out = v4.rope(np.einsum("hst,td->shd", share, K), block, f, -1).reshape(gamma, size.o_groups, -1)
    wo_a = W[f"{prefix}wo_a.weight"].reshape(size.o_groups, size.o_lora_rank, -1)
    projected: Array = np.einsum("sgd,grd->sgr", out, wo_a).reshape(gamma, -1) @ W[f"{prefix}wo_b.weight"].T
    return projected


def draft_block(
    anchor: int,
    taps: Array,
    W: Weights,
    size: Sizes,
    stages: int,
    gamma: int,
    noise: int,
    sample: Callable[[Array], int] | None = None,
) -> tuple[list[int], Array, Array]:
    """Drafts one block after `anchor`, which sits at absolute position n = len(taps).

    taps [n, stages * d]: tap rows of the positions 0 .. n - 1 (the anchor's own row is not among them). sample: logits
    [V] -> token, greedy when None. Returns tokens [gamma], logits [gamma, V] with the Markov bias, and confidence
    logits [gamma].
    """
    n, eps = taps.shape[0], size.rms_norm_eps
    context = v4.rms(taps @ W["mtp.0.main_proj.weight"].T, W["mtp.0.main_norm.weight"], eps)
    ids = np.full(gamma, noise)
    ids[0] = anchor
    streams = np.repeat(W["embed.weight"][ids][:, None], size.hc_mult, 1)
    for s in range(stages):
        p = f"mtp.{s}."
        pre, post, comb = v4.hyper_coefficients(streams, W, f"{p}hc_attn", size)
        x = v4.rms((pre[:, :, None] * streams).sum(1), W[f"{p}attn_norm.weight"], eps)
        streams = v4.hyper_expand(attend(x, context, n, W, f"{p}attn.", size), streams, post, comb)
        pre, post, comb = v4.hyper_coefficients(streams, W, f"{p}hc_ffn", size)
        x = v4.rms((pre[:, :, None] * streams).sum(1), W[f"{p}ffn_norm.weight"], eps)
        streams = v4.hyper_expand(v4.ffn(x, ids, W, f"{p}ffn.", False, size), streams, post, comb)
    last = f"mtp.{stages - 1}."
    hidden = v4.hyper_head(streams, W, last, size)  # [gamma, d], before the norm: what the confidence reads
    logits = v4.rms(hidden, W[f"{last}norm.weight"], eps) @ W["head.weight"].T
    tokens: list[int] = []
    confidence: list[float] = []
    previous = anchor
    for i in range(gamma):
        e = W[f"{last}markov_head.markov_w1.weight"][previous]
        logits[i] += e @ W[f"{last}markov_head.markov_w2.weight"].T
        confidence.append(float(np.concatenate([hidden[i], e]) @ W[f"{last}confidence_head.proj.weight"][0]))
        previous = int(logits[i].argmax()) if sample is None else int(sample(logits[i]))
        tokens.append(previous)
    return tokens, logits, np.array(confidence)
