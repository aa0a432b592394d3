"""Random dense drafters on disk, in both packagings, with the numbers that the float64 definition reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tests.mlx_lm_target import tiny as mlx_lm_tiny
from tests.oracles.dense_dspark_numpy import Array, Weights

from sparkwright.core.contracts import Resources
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.drafters.dspark.dense import DenseDrafter, DenseState
from sparkwright.plugins.drafters.dspark.dense_config import expected, lendable, read_config
from sparkwright.plugins.drafters.dspark.dense_weights import load

V = mlx_lm_tiny.VOCABULARY
TAPS = 3
BACKBONE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
    "vocab_size": V,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "layer_types": ["full_attention"] * 3,
}
HEADS: dict[str, Any] = {
    "block_size": 7,
    "mask_token_id": V - 1,
    "markov_rank": 8,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
DEEPSPEC: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"], "target_layer_ids": [-1, 1, 2], **BACKBONE, **HEADS,
}  # fmt: skip
SPECULATORS: dict[str, Any] = {
    "architectures": ["DSparkSpeculator"],
    "speculators_model_type": "dspark",
    "transformer_layer_config": BACKBONE | {"model_type": "qwen3"},
    "draft_vocab_size": V,
    "aux_hidden_state_layer_ids": [0, 2, 3],
    "sample_from_anchor": True,
    "sliding_window_non_causal": False,
    "speculators_config": {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}]},
    **HEADS,
}
REDUCED = 101  # tokens of a reduced vocabulary


def inner(**keys: Any) -> dict[str, Any]:
    """Keys for the nested part of the `speculators` packaging."""
    return {"transformer_layer_config": SPECULATORS["transformer_layer_config"] | keys}


def made(folder: Path, base: dict[str, Any] = DEEPSPEC, seed: int = 0, **keys: Any) -> tuple[dict[str, Any], Weights]:
    """Writes a random drafter; its numbers in float64, lent tensors among them though they are not written."""
    raw = base | keys
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    config = read_config(folder)
    rng, weights = np.random.default_rng(seed), {}
    for name, shape in expected(config).items():
        norm = "norm" in name
        table = "markov_w" in name or "embed" in name
        scale = 0.2 if norm else 1.0 if table else 1.5 / shape[-1] ** 0.5
        weights[name] = (norm + scale * rng.standard_normal(shape)).astype(np.float32)
    stored = {n: mx.array(a) for n, a in weights.items() if n not in lendable(config)}
    exact = {n: a.astype(np.float64) for n, a in weights.items()}
    if config.reduced:
        ids = np.sort(rng.choice(V, config.draft_vocab, replace=False))
        exact["d2t"] = ids - np.arange(config.draft_vocab)
        stored |= {"d2t": mx.array(exact["d2t"].astype(np.int64)), "t2d": mx.array(np.isin(np.arange(V), ids))}
    mx.save_safetensors(str(folder / "model.safetensors"), stored)
    return raw, exact


def lent(weights: Weights) -> Resources:
    """What a target would lend for these weights."""
    embed = mx.array(weights["embed_tokens.weight"].astype(np.float32))
    head = mx.array(weights["lm_head.weight"].astype(np.float32))
    return Resources(embed=lambda tokens: embed[tokens], head=lambda hidden: hidden @ head.T)


def drafter(folder: Path, resources: Resources | None = None) -> DenseDrafter:
    config = read_config(folder)
    return DenseDrafter.build(config, load(folder, config, "cpu"), select_reference, resources=resources)


def random_taps(count: int) -> Array:
    return np.random.default_rng(count).standard_normal((count, TAPS * 64)).astype(np.float32).astype(np.float64)


def fed(model: DenseDrafter, taps: Array, appends: list[int]) -> DenseState:
    state = model.new_state(lambda logits: logits, False, False)
    at = turn = 0
    while at < len(taps):
        m = min(appends[turn % len(appends)], len(taps) - at)
        model.observe(state, mx.array(taps[at : at + m].astype(np.float32)))
        at, turn = at + m, turn + 1
    return state
