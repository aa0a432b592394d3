"""Tiny random models, made with mlx-lm's own classes and written as model directories."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn
from mlx.utils import tree_flatten
from tests.text.tokenizers_for_tests import byte_level, write

from sparkwright.core.contracts import Site
from sparkwright.plugins.targets import mlx_lm
from sparkwright.plugins.targets.mlx_lm import MlxLmTarget

VOCABULARY = 270
COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "eos_token_id": 263,
}
FULL, SLIDING = "full_attention", "sliding_attention"
CONFIGS: Mapping[str, dict[str, Any]] = {
    "llama": {**COMMON, "model_type": "llama", "tie_word_embeddings": True},
    "qwen3": {**COMMON, "model_type": "qwen3", "tie_word_embeddings": False},
    "gemma2": {
        **COMMON,
        "model_type": "gemma2",
        "query_pre_attn_scalar": 16.0,
        "final_logit_softcapping": 5.0,
        "attn_logit_softcapping": 50.0,
    },
    "windowed": {  # layers with a window of 5 beside full ones
        **COMMON,
        "model_type": "llama",
        "tie_word_embeddings": True,
        "layer_types": [SLIDING, FULL, SLIDING, FULL],
        "sliding_window": 5,
    },
    "gemma3": {
        **COMMON,
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": 16,
        "sliding_window": 70,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 10000.0,
    },
    "hybrid": {  # short convolutions, which cannot be trimmed, beside attention
        **COMMON,
        "model_type": "lfm2",
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 96,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1, 3],
    },
    "recurrent": {  # convolution and state-space arrays, which cannot be trimmed
        "model_type": "mamba",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "state_size": 8,
        "num_hidden_layers": 3,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
        "eos_token_id": 263,
    },
}


def make(directory: Path, name: str, seed: int = 0, bits: int | None = None, **changes: Any) -> Path:
    """A model directory of CONFIGS[name] with random float32 weights, or quantised to `bits` in groups of 32."""
    config = {**CONFIGS[name], **changes}
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    key = mx.random.key(seed)
    weights = {}
    for index, (path, value) in enumerate(sorted(dict(tree_flatten(model.parameters())).items())):
        noise = mx.random.normal(value.shape, key=mx.random.split(key, 300)[index])
        weights[path] = value if path.endswith(("A_log", ".D")) else noise * (0.3 if value.ndim > 1 else 0.1)
    model.load_weights(list(weights.items()))
    if bits is not None:
        nn: Any = mlx.nn
        nn.quantize(model, group_size=32, bits=bits)
        config["quantization"] = {"group_size": 32, "bits": bits}
    write(directory, byte_level(), {"eos_token": "</s>"}, config=config)
    mx.save_safetensors(str(directory / "model.safetensors"), dict(tree_flatten(model.parameters())))
    return directory


def site(directory: Path, taps: tuple[int, ...] = (), **more: Any) -> Site:
    return Site(model=directory, taps=taps, **more)


def load(directory: Path, taps: tuple[int, ...] = (), dtype: str = "auto", **more: Any) -> MlxLmTarget:
    return mlx_lm.build(mlx_lm.Options(dtype=dtype), site(directory, taps, **more))


def edit_config(directory: Path, **changes: Any) -> None:
    """Changes keys of config.json; None removes one."""
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
