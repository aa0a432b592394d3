"""The dense DSpark drafter by definition, in float64 NumPy (spec section 9.2): all three heads, both packagings.

W holds the tensors as stored. The `speculators` packaging nests the backbone's numbers in `transformer_layer_config`;
what it does not store (embedding, full head) is in W as the target's.
"""

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


def sigmoid(x: Array) -> Array:
    y: Array = 1 / (1 + np.exp(-x))
    return y


def bias(kind: str, state: Array, e: Array, hidden: Array, W: Weights) -> tuple[Array, Array]:
    """What a Markov head adds to a slot's logits: state and embedding of the token before -> (next state, bias)."""
    w2 = W["markov_head.markov_w2.weight"]
    if kind == "vanilla":
        return state, w2 @ e
    if kind == "gated":
        gate = W["markov_head.gate_proj.weight"] @ np.concatenate([hidden, e]) + W["markov_head.gate_proj.bias"]
        return state, w2 @ (sigmoid(gate) * e)
    joint = W["markov_head.joint_proj.weight"] @ np.concatenate([state, e, hidden]) + W["markov_head.joint_proj.bias"]
    rank = len(e)
    keep = sigmoid(joint[:rank])
    return keep * state + (1 - keep) * np.tanh(joint[rank : 2 * rank]), w2 @ np.tanh(joint[2 * rank :])


def visible(n: int, size: int, layer: int, raw: dict[str, Any], inner: dict[str, Any]) -> Array:
    """bool [size, n + size]: which context rows and which slots of the block each slot of the block attends to."""
    seen = np.ones((size, n + size), dtype=bool)
    if (inner.get("layer_types") or ["full_attention"] * (layer + 1))[layer] == "sliding_attention":
        seen[:, : max(0, n - inner["sliding_window"])] = False
        if not raw["sliding_window_non_causal"]:
            seen[:, n:] = np.tril(np.ones((size, size), dtype=bool))
    return seen


def draft_block(anchor: int, taps: Array, W: Weights, raw: dict[str, Any]) -> tuple[list[int], Array, Array]:
    """anchor sits at position len(taps); greedy. -> tokens [block], the target's numbers; logits with the bias, [block,
    V] (-inf where a reduced vocabulary has no token); confidences."""
    inner = raw.get("transformer_layer_config", raw)
    n, size, eps = len(taps), raw["block_size"], inner["rms_norm_eps"]
    H, G, D = inner["num_attention_heads"], inner["num_key_value_heads"], inner["head_dim"]
    theta = inner["rope_parameters"]["rope_theta"]
    context = rms(taps @ W["fc.weight"].T, W["hidden_norm.weight"], eps)
    x = W["embed_tokens.weight"][[anchor] + [raw["mask_token_id"]] * (size - 1)]
    block, every = np.arange(n, n + size), np.arange(n + size)
    for i in range(inner["num_hidden_layers"]):
        p = f"layers.{i}."
        a = f"{p}self_attn."
        y = rms(x, W[f"{p}input_layernorm.weight"], eps)
        both = np.concatenate([context, y])
        q = rope(rms((y @ W[f"{a}q_proj.weight"].T).reshape(size, H, D), W[f"{a}q_norm.weight"], eps), block, theta)
        k = rope(rms((both @ W[f"{a}k_proj.weight"].T).reshape(-1, G, D), W[f"{a}k_norm.weight"], eps), every, theta)
        v = (both @ W[f"{a}v_proj.weight"].T).reshape(-1, G, D)
        k, v = np.repeat(k, H // G, 1), np.repeat(v, H // G, 1)
        score = np.einsum("shd,thd->hst", q, k) / np.sqrt(D)
        score = np.where(visible(n, size, i, raw, inner), score, -np.inf)
        share = np.exp(score - score.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        x = x + np.einsum("hst,thd->shd", share, v).reshape(size, -1) @ W[f"{a}o_proj.weight"].T
        y = rms(x, W[f"{p}post_attention_layernorm.weight"], eps)
        gate = y @ W[f"{p}mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ W[f"{p}mlp.up_proj.weight"].T)) @ W[f"{p}mlp.down_proj.weight"].T
    hidden = rms(x, W["norm.weight"], eps)  # what the heads and the confidence read: after the norm
    small = hidden @ W["lm_head.weight"].T  # [block, tokens that can be drafted]
    ids = np.arange(small.shape[1]) + W.get("d2t", 0)
    logits = np.full((size, inner["vocab_size"]), -np.inf)
    tokens: list[int] = []
    claims: list[float] = []
    previous, state = anchor, np.zeros(raw["markov_rank"])
    for i in range(size):
        e = W["markov_head.markov_w1.weight"][previous]
        state, added = bias(raw["markov_head_type"], state, e, hidden[i], W)
        logits[i, ids] = small[i] + added
        read = np.concatenate([hidden[i], e]) if raw["confidence_head_with_markov"] else hidden[i]
        claims.append(float(read @ W["confidence_head.proj.weight"][0] + W["confidence_head.proj.bias"][0]))
        previous = int(logits[i].argmax())
        tokens.append(previous)
    return tokens, logits, sigmoid(np.array(claims))
