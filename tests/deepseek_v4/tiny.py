"""Tiny random models of the family: one set of numbers for the oracle (float64) and for the plugin (float32).

Every tensor is drawn so that it matters (spec 16.3): sinks, `ape`, biases and the hash table are not zero, as they are
in common initialisations that hide bugs. Values are float32 numbers, so both sides start from the same weights.
"""

from __future__ import annotations

from typing import Any

import attrs
import mlx.core as mx
import numpy as np
from tests.oracles.deepseek_v4_numpy import Array, Sizes, Weights

from sparkwright.core.contracts import SelectKernel
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.deepseek_v4.linear import ArrayWeights
from sparkwright.plugins.deepseek_v4.model import Model

TINY_A: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "vocab_size": 257,
    "hidden_size": 64,
    "num_hidden_layers": 7,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4],
    "num_hash_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "sliding_window": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "swiglu_limit": 10.0,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 512,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
"""Exercises every path within 300 tokens: hash and score routing, both ratios, a sparse indexer, window wrap."""

PRO_LIKE = TINY_A | {
    "num_hidden_layers": 5,
    "compress_ratios": [128, 128, 4, 128, 4],
    "hidden_size": 96,
    "num_attention_heads": 6,
    "o_groups": 3,
    "n_routed_experts": 9,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 2.5,
    "sliding_window": 24,
    "index_topk": 12,
    "swiglu_limit": 1.0,
    "hc_sinkhorn_iters": 12,
}
"""Starts with ratio 128 as Pro does; other head and group counts; a SwiGLU limit that clamps."""

ONE_BLOCK = TINY_A | {
    "num_hidden_layers": 4,
    "compress_ratios": [4, 128, 0, 4],
    "num_hash_layers": 1,
    "sliding_window": 6,
    "index_topk": 31,
    "head_dim": 16,
    "rope_scaling": None,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 4,
}
"""Window, ratio 4, ratio 128 and the indexer's top-k (32 rows against 31) all turn within the block at 124 .. 131."""

MANY_HEADS = TINY_A | {
    "num_hidden_layers": 3,
    "compress_ratios": [4, 4, 128],
    "num_hash_layers": 0,
    "index_n_heads": 28,
    "index_topk": 5,
    "index_head_dim": 32,
    "num_experts_per_tok": 4,
    "hc_sinkhorn_iters": 8,
}
"""24 and more index heads, top-k crossed early, no hash layers."""

MID_K = TINY_A | {
    "num_hidden_layers": 1,
    "compress_ratios": [4],
    "num_hash_layers": 0,
    "index_topk": 512,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "hc_sinkhorn_iters": 3,
}
"""The released top-k: crosses 512 and 1,024 visible rows at 2,048 and 4,096 tokens (spec 16.3)."""

CONFIGS = {"tiny-A": TINY_A, "pro-like": PRO_LIKE, "one-block": ONE_BLOCK, "many-heads": MANY_HEADS}


def sizes(raw: dict[str, Any]) -> Sizes:
    """The oracle's view of a config."""
    names = {a.name for a in attrs.fields(Sizes)}
    kept: dict[str, Any] = {name: raw[name] for name in names if name in raw}
    kept["compress_ratios"] = tuple(raw["compress_ratios"][: raw["num_hidden_layers"]])
    yarn = raw.get("rope_scaling")
    if yarn:
        keys = ("original_max_position_embeddings", "factor", "beta_fast", "beta_slow")
        kept["yarn"] = tuple(float(yarn[k]) for k in keys)
    return Sizes(**kept)


class Draw:
    """Draws named tensors into `out`, as float32 numbers in float64."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.out: Weights = {}

    def normal(self, name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> None:
        self.out[name] = (mean + scale * self.rng.standard_normal(shape)).astype(np.float32).astype(np.float64)

    def matrix(self, name: str, out: int, width: int) -> None:
        self.normal(f"{name}.weight", out, width, scale=1.5 / width**0.5)

    def norm(self, name: str, width: int) -> None:
        self.normal(f"{name}.weight", width, scale=0.2, mean=1.0)

    def hyper(self, name: str, rows: int, scales: int, s: Sizes) -> None:
        width = s.hc_mult * s.hidden_size
        self.normal(f"{name}_fn", rows, width, scale=1.5 / width**0.5)
        self.normal(f"{name}_base", rows, scale=0.5)
        self.out[f"{name}_scale"] = self.rng.uniform(0.5, 1.5, scales).astype(np.float32).astype(np.float64)


def random_block(draw: Draw, s: Sizes, p: str, ratio: int, hashed: bool) -> None:
    """Draws the tensors of one block under the prefix p."""
    d, H, D = s.hidden_size, s.num_attention_heads, s.head_dim
    draw.norm(f"{p}attn_norm", d)
    draw.norm(f"{p}ffn_norm", d)
    a = f"{p}attn."
    draw.matrix(f"{a}wq_a", s.q_lora_rank, d)
    draw.norm(f"{a}q_norm", s.q_lora_rank)
    draw.matrix(f"{a}wq_b", H * D, s.q_lora_rank)
    draw.matrix(f"{a}wkv", D, d)
    draw.norm(f"{a}kv_norm", D)
    draw.normal(f"{a}attn_sink", H, scale=0.5)
    draw.matrix(f"{a}wo_a", s.o_groups * s.o_lora_rank, H * D // s.o_groups)
    draw.matrix(f"{a}wo_b", d, s.o_groups * s.o_lora_rank)
    compressors = [(f"{a}compressor", D)] if ratio else []
    if ratio == 4:
        draw.matrix(f"{a}indexer.wq_b", s.index_n_heads * s.index_head_dim, s.q_lora_rank)
        draw.matrix(f"{a}indexer.weights_proj", s.index_n_heads, d)
        compressors.append((f"{a}indexer.compressor", s.index_head_dim))
    for name, width in compressors:
        wide = 2 * width if ratio == 4 else width
        draw.matrix(f"{name}.wkv", wide, d)
        draw.matrix(f"{name}.wgate", wide, d)
        draw.normal(f"{name}.ape", ratio, wide, scale=0.5)
        draw.norm(f"{name}.norm", width)
    n = s.hc_mult
    draw.hyper(f"{p}hc_attn", (2 + n) * n, 3, s)
    draw.hyper(f"{p}hc_ffn", (2 + n) * n, 3, s)
    f = f"{p}ffn."
    draw.matrix(f"{f}gate", s.n_routed_experts, d)
    if hashed:
        k = s.num_experts_per_tok
        order = np.argsort(draw.rng.random((s.vocab_size, s.n_routed_experts)), axis=1)
        draw.out[f"{f}gate.tid2eid"] = order[:, :k].astype(np.int64)  # distinct experts for each token
    else:
        draw.normal(f"{f}gate.bias", s.n_routed_experts, scale=0.5)
    for e in [f"experts.{i}" for i in range(s.n_routed_experts)] + ["shared_experts"]:
        draw.matrix(f"{f}{e}.w1", s.moe_intermediate_size, d)
        draw.matrix(f"{f}{e}.w3", s.moe_intermediate_size, d)
        draw.matrix(f"{f}{e}.w2", d, s.moe_intermediate_size)


def random_weights(raw: dict[str, Any], seed: int) -> Weights:
    """Official names -> float64 arrays (tid2eid: int64)."""
    s, draw = sizes(raw), Draw(seed)
    draw.normal("embed.weight", s.vocab_size, s.hidden_size)
    draw.matrix("head", s.vocab_size, s.hidden_size)
    draw.norm("norm", s.hidden_size)
    draw.hyper("hc_head", s.hc_mult, 1, s)
    for i, ratio in enumerate(s.compress_ratios):
        random_block(draw, s, f"layers.{i}.", ratio, i < s.num_hash_layers)
    return draw.out


def random_tokens(raw: dict[str, Any], count: int, seed: int) -> Array:
    return np.random.default_rng(1000 + seed).integers(0, raw["vocab_size"], count)


def memory_weights(weights: Weights) -> ArrayWeights:
    """The plugin's view of the same numbers."""
    return ArrayWeights(
        {n: mx.array(a.astype(np.int32 if a.dtype == np.int64 else np.float32)) for n, a in weights.items()}
    )


def tiny_model(
    raw: dict[str, Any],
    weights: Weights,
    select: SelectKernel = select_reference,
    taps: tuple[int, ...] = (),
    row_exact: bool = False,
) -> Model:
    config = ModelConfig.from_json(raw, "tiny")
    return Model.build(config, memory_weights(weights), select, taps, row_exact)
