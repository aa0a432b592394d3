"""Configs that are damaged, absurd or of a relative: one sentence that names the key, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.deepseek_v4 import tiny

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4.config import ModelConfig

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "V4.1": ({"model_type": "deepseek_v41"}, "DeepSeek-V4.1"),
    "V4.1 flash": ({"model_type": "deepseek_v41_flash"}, "DeepSeek-V4.1"),
    "V4.1 by architecture": ({"architectures": ["DeepseekV41ForCausalLM"]}, "DeepSeek-V4.1"),
    "another model": ({"model_type": "llama"}, "'model_type' is 'llama'"),
    "NextN": ({"num_nextn_predict_layers": 1}, "NextN"),
    "no schedule": ({"compress_ratios": None}, "'compress_ratios' is missing"),
    "short schedule": ({"compress_ratios": [0, 4]}, "2 entries for 7 layers"),
    "unknown ratio": ({"compress_ratios": [0, 0, 4, 64, 4, 128, 4]}, r"'compress_ratios'\[3\] is 64"),
    "no size": ({"hidden_size": None}, "'hidden_size' is missing"),
    "absurd size": ({"hidden_size": 1 << 40}, "'hidden_size' is 1099511627776"),
    "negative": ({"num_attention_heads": -4}, "'num_attention_heads' is -4"),
    "a text": ({"head_dim": "32"}, "'head_dim' is '32'"),
    "true": ({"o_groups": True}, "'o_groups' is True"),
    "not a number": ({"rope_theta": float("nan")}, "'rope_theta' is nan"),
    "odd rotary": ({"qk_rope_head_dim": 7}, "'qk_rope_head_dim' is 7"),
    "wide rotary": ({"qk_rope_head_dim": 34}, "more than 'head_dim'"),
    "groups": ({"o_groups": 3}, "'o_groups' is 3"),
    "experts": ({"num_experts_per_tok": 9}, "more than 'n_routed_experts'"),
    "scoring": ({"scoring_func": "softmax"}, "'scoring_func' is 'softmax'"),
    "rope type": ({"rope_scaling": {"type": "linear", "factor": 2}}, "'rope_scaling.type' is 'linear'"),
    "yarn without length": ({"rope_scaling": {"type": "yarn", "factor": 2}}, "original_max_position_embeddings"),
    "eos": ({"eos_token_id": [1, 999]}, "outside the vocabulary"),
    "taps": (
        {
            "dspark_block_size": 5,
            "dspark_target_layer_ids": [5, 6, 7],
            "dspark_noise_token_id": 3,
            "dspark_markov_rank": 8,
        },
        "expected layers in 0..6",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused_by_name(name: str) -> None:
    change, message = WRONG[name]
    raw = {key: value for key, value in (tiny.TINY_A | change).items() if value is not None}
    with pytest.raises(ModelError, match=message) as caught:
        ModelConfig.from_json(raw, "here/config.json")
    assert str(caught.value).startswith("here/config.json") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key", [k for k in tiny.TINY_A if k in ("vocab_size", "sliding_window", "model_type", "o_lora_rank")]
)
def test_a_missing_key_is_named(key: str) -> None:
    raw = {k: v for k, v in tiny.TINY_A.items() if k != key}
    with pytest.raises(ModelError, match=f"'{key}'"):
        ModelConfig.from_json(raw)
