"""The dense DSpark drafter by definition, in float64 NumPy (spec section 9.2): vanilla head, DeepSpec packaging."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]


def rms(x: Array, weight: Array, eps: float) -> Array:
    y: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return y


def rope(x: Array, position: Array, theta: float) -> Array:
    """x [S, H, D]: channel i turns with channel i + D / 2."""
    half = x.shape[-1] // 2
    angle = np.outer(position, theta ** (-np.arange(half) / half))[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def draft_block(anchor: int, taps: Array, W: Weights, raw: dict[str, Any]) -> tuple[list[int], Array, Array]:
    """anchor sits at position len(taps); greedy. -> tokens [block], logits with the bias [block, V], confidences."""
    n, size, eps = len(taps), raw["block_size"], raw["rms_norm_eps"]
    H, G, D = raw["num_attention_heads"], raw["num_key_value_heads"], raw["head_dim"]
    theta = raw["rope_parameters"]["rope_theta"]
    context = rms(taps @ W["fc.weight"].T, W["hidden_norm.weight"], eps)
    x = W["embed_tokens.weight"][[anchor] + [raw["mask_token_id"]] * (size - 1)]
    block, every = np.arange(n, n + size), np.arange(n + size)
    for i in range(raw["num_hidden_layers"]):
        p = f"layers.{i}."
        a = f"{p}self_attn."
        y = rms(x, W[f"{p}input_layernorm.weight"], eps)
        both = np.concatenate([context, y])
        q = rope(rms((y @ W[f"{a}q_proj.weight"].T).reshape(size, H, D), W[f"{a}q_norm.weight"], eps), block, theta)
        k = rope(rms((both @ W[f"{a}k_proj.weight"].T).reshape(-1, G, D), W[f"{a}k_norm.weight"], eps), every, theta)
        v = (both @ W[f"{a}v_proj.weight"].T).reshape(-1, G, D)
        k, v = np.repeat(k, H // G, 1), np.repeat(v, H // G, 1)
        score = np.einsum("shd,thd->hst", q, k) / np.sqrt(D)
        share = np.exp(score - score.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        x = x + np.einsum("hst,thd->shd", share, v).reshape(size, -1) @ W[f"{a}o_proj.weight"].T
        y = rms(x, W[f"{p}post_attention_layernorm.weight"], eps)
        gate = y @ W[f"{p}mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ W[f"{p}mlp.up_proj.weight"].T)) @ W[f"{p}mlp.down_proj.weight"].T
    hidden = rms(x, W["norm.weight"], eps)  # what the head and the confidence read: after the norm
    logits = hidden @ W["lm_head.weight"].T
    tokens: list[int] = []
    claims: list[float] = []
    previous = anchor
    for i in range(size):
        e = W["markov_head.markov_w1.weight"][previous]
        logits[i] += W["markov_head.markov_w2.weight"] @ e
        read = np.concatenate([hidden[i], e]) if raw["confidence_head_with_markov"] else hidden[i]
        claims.append(float(read @ W["confidence_head.proj.weight"][0] + W["confidence_head.proj.bias"][0]))
        previous = int(logits[i].argmax())
        tokens.append(previous)
    return tokens, logits, 1 / (1 + np.exp(-np.array(claims)))
