"""The numbers of a dense DSpark drafter (DeepSpec packaging), read from its `config.json` and checked (spec 9.1).

It imports no MLX. What this drafter cannot run is refused here by name: other heads than vanilla, Gemma's backbone,
windows, and the `speculators` packaging.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4.headers import read_json


@attrs.frozen
class DenseConfig:
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int  # of the MLP
    eps: float
    rope_theta: float
    context: int
    block: int
    mask_token_id: int
    taps: tuple[int, ...]
    rank: int
    confidence: bool
    confidence_with_markov: bool


def is_dense(path: Path) -> bool:
    """Whether a folder's config names a standalone DSpark drafter for a dense target."""
    file = path / "config.json"
    if not file.is_file():
        return False
    raw = read_json(file)
    names = raw.get("architectures") or []
    return any(str(name).endswith("DSparkModel") for name in names) or "transformer_layer_config" in raw


def read_config(path: Path) -> DenseConfig:
    """ModelError names the first key that is missing, makes no sense, or asks for what is not supported."""
    where = path / "config.json"
    raw = read_json(where)
    if "transformer_layer_config" in raw:
        raise ModelError(
            f"{where}: this drafter is in the 'speculators' packaging, which is not supported; use a DeepSpec "
            "checkpoint (architectures: Qwen3DSparkModel)"
        )
    architecture = str((raw.get("architectures") or [""])[0])
    if architecture != "Qwen3DSparkModel":
        raise ModelError(f"{where}: 'architectures' is {architecture!r}, expected 'Qwen3DSparkModel'")

    def size(key: str, least: int = 1) -> int:
        value = raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
            raise ModelError(f"{where}: '{key}' is {value!r}, expected a whole number from {least} on")
        return value

    def fixed(key: str, default: Any, *allowed: Any) -> Any:
        value = raw.get(key, default)
        if value not in allowed:
            raise ModelError(f"{where}: '{key}' is {value!r}; supported: {', '.join(map(repr, allowed))}")
        return value

    fixed("markov_head_type", "vanilla", "vanilla")
    for kind in raw.get("layer_types") or ():
        if kind != "full_attention":
            raise ModelError(f"{where}: 'layer_types' holds {kind!r}; supported: 'full_attention'")
    fixed("attention_bias", False, False)
    fixed("hidden_act", "silu", "silu")
    taps = raw.get("target_layer_ids")
    if not isinstance(taps, list) or not taps or not all(isinstance(t, int) and t >= -1 for t in taps):
        raise ModelError(f"{where}: 'target_layer_ids' is {taps!r}, expected a list of layers (-1 is the embedding)")
    config = DenseConfig(
        vocab_size=size("vocab_size"),
        hidden=size("hidden_size"),
        layers=size("num_hidden_layers"),
        heads=size("num_attention_heads"),
        kv_heads=size("num_key_value_heads"),
        head_dim=size("head_dim"),
        width=size("intermediate_size"),
        eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=_theta(raw, where),
        context=size("max_position_embeddings"),
        block=size("block_size"),
        mask_token_id=size("mask_token_id", 0),
        taps=tuple(taps),
        rank=size("markov_rank"),
        confidence=bool(fixed("enable_confidence_head", False, True, False)),
        confidence_with_markov=bool(fixed("confidence_head_with_markov", False, True, False)),
    )
    if config.mask_token_id >= config.vocab_size:
        raise ModelError(f"{where}: 'mask_token_id' is {config.mask_token_id}, outside {config.vocab_size} tokens")
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise ModelError(f"{where}: {config.heads} heads, {config.kv_heads} key heads, head_dim {config.head_dim}")
    return config


def _theta(raw: Mapping[str, Any], where: Path) -> float:
    """The rotary base, which DeepSpec keeps inside `rope_parameters`."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in (None, "default"):
        raise ModelError(f"{where}: the drafter's rotary type is {kind!r}; supported: 'default'")
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    if not isinstance(theta, (int, float)) or theta <= 1:
        raise ModelError(f"{where}: 'rope_parameters.rope_theta' is {theta!r}, expected a number above 1")
    return float(theta)


def expected(c: DenseConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor."""
    h, d = c.hidden, c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (c.vocab_size, h),
        "lm_head.weight": (c.vocab_size, h),
        "fc.weight": (h, len(c.taps) * h),
        "hidden_norm.weight": (h,),
        "norm.weight": (h,),
        "markov_head.markov_w1.weight": (c.vocab_size, c.rank),
        "markov_head.markov_w2.weight": (c.vocab_size, c.rank),
    }
    if c.confidence:
        shapes["confidence_head.proj.weight"] = (1, h + (c.rank if c.confidence_with_markov else 0))
        shapes["confidence_head.proj.bias"] = (1,)
    for i in range(c.layers):
        p = f"layers.{i}."
        shapes |= {
            f"{p}self_attn.q_proj.weight": (c.heads * d, h),
            f"{p}self_attn.k_proj.weight": (c.kv_heads * d, h),
            f"{p}self_attn.v_proj.weight": (c.kv_heads * d, h),
            f"{p}self_attn.o_proj.weight": (h, c.heads * d),
            f"{p}self_attn.q_norm.weight": (d,),
            f"{p}self_attn.k_norm.weight": (d,),
            f"{p}mlp.gate_proj.weight": (c.width, h),
            f"{p}mlp.up_proj.weight": (c.width, h),
            f"{p}mlp.down_proj.weight": (h, c.width),
            f"{p}input_layernorm.weight": (h,),
            f"{p}post_attention_layernorm.weight": (h,),
        }
    return shapes
