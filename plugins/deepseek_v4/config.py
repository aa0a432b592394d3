"""The numbers of a DeepSeek-V4 model, read from its `config.json` and checked (spec section 2).

It knows the names of the keys and what values make sense together. It knows nothing of tensors, files or MLX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from sparkwright.core.errors import ModelError

RATIOS = (0, 4, 128)
"""Compression ratios of the family: sliding window only, CSA (with indexer), HCA."""

LARGEST = 1 << 24
"""No size in a config of this family comes near this; a larger one is a damaged or hostile file."""


@attrs.frozen
class Yarn:
    """YaRN scaling of the rotary frequencies of compressed layers; V4 applies no attention factor (spec 5.4)."""

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@attrs.frozen
class DSparkConfig:
    """The drafter's part of a config: blocks of `block_size` drafts, `stages` blocks `mtp.0 ..`, taps ."""

    block_size: int
    noise_token_id: int
    target_layer_ids: tuple[int, ...]
    markov_rank: int
    stages: int


@attrs.frozen
class ModelConfig:
    """Sizes of the target. Letters of the spec: d hidden, n hc_mult, H heads, D head_dim, R rope_dim, W window."""

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    o_groups: int
    o_rank: int
    window: int
    ratios: tuple[int, ...]  # one a layer
    rope_theta: float
    compress_rope_theta: float
    yarn: Yarn | None
    context: int
    index_heads: int
    index_dim: int
    index_topk: int
    experts: int
    shared_experts: int
    experts_per_token: int
    expert_width: int
    hash_layers: int
    routed_scale: float
    swiglu_limit: float
    hc_mult: int
    hc_iters: int
    hc_eps: float
    rms_eps: float
    eos: tuple[int, ...]
    bos: int | None
    expert_dtype: str | None  # "fp4" in the official releases
    dspark: DSparkConfig | None

    def kind(self, layer: int) -> Literal["swa", "csa", "hca"]:
        """What a layer attends to besides its window."""
        return {0: "swa", 4: "csa", 128: "hca"}[self.ratios[layer]]  # type: ignore[return-value]

    def hashed(self, layer: int) -> bool:
        """Whether the layer routes by token id (`tid2eid`) instead of by score."""
        return layer < self.hash_layers

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """Reads the root object of a `config.json`. ModelError names the first key that is missing or absurd."""
        read = _Reader(raw, where)
        _refuse_relatives(raw, where)
        layers = read.size("num_hidden_layers", most=4096)
        every = read.sizes("compress_ratios", least=0)
        if len(every) < layers:
            raise ModelError(
                f"{where}: 'compress_ratios' has {len(every)} entries for {layers} layers; it needs one for each layer"
            )
        for i, ratio in enumerate(every):
            if ratio not in RATIOS:
                raise ModelError(f"{where}: 'compress_ratios'[{i}] is {ratio}; DeepSeek-V4 knows 0, 4 and 128")
        config = cls(
            vocab_size=read.size("vocab_size"),
            hidden=read.size("hidden_size"),
            layers=layers,
            heads=read.size("num_attention_heads"),
            head_dim=read.size("head_dim"),
            rope_dim=read.size("qk_rope_head_dim"),
            q_rank=read.size("q_lora_rank"),
            o_groups=read.size("o_groups"),
            o_rank=read.size("o_lora_rank"),
            window=read.size("sliding_window"),
            ratios=every[:layers],
            rope_theta=read.number("rope_theta", 10000.0),
            compress_rope_theta=read.number("compress_rope_theta", 160000.0),
            yarn=_yarn(raw, where),
            context=read.size("max_position_embeddings", most=1 << 31),
            index_heads=read.size("index_n_heads", 64),
            index_dim=read.size("index_head_dim", 128),
            index_topk=read.size("index_topk", 512),
            experts=read.size("n_routed_experts"),
            shared_experts=read.size("n_shared_experts", 1, least=0),
            experts_per_token=read.size("num_experts_per_tok"),
            expert_width=read.size("moe_intermediate_size"),
            hash_layers=read.size("num_hash_layers", 0, least=0),
            routed_scale=read.number("routed_scaling_factor", 1.0),
            swiglu_limit=read.number("swiglu_limit", 10.0),
            hc_mult=read.size("hc_mult", 4),
            hc_iters=read.size("hc_sinkhorn_iters", 20, most=1000),
            hc_eps=read.number("hc_eps", 1e-6),
            rms_eps=read.number("rms_norm_eps", 1e-6),
            eos=read.tokens("eos_token_id"),
            bos=next(iter(read.tokens("bos_token_id")), None),
            expert_dtype=_text(raw, "expert_dtype"),
            dspark=_dspark(read, raw, where, layers, len(every)),
        )
        _check(config, raw, where)
        return config


def _refuse_relatives(raw: Mapping[str, Any], where: str) -> None:
    """Models that share the name but not the forward pass (spec section 15)."""
    model = str(raw.get("model_type", ""))
    listed = raw.get("architectures")
    names = [model, *(str(a) for a in (listed if isinstance(listed, list) else []))]
    folded = [name.lower().replace("_", "").replace(".", "") for name in names]
    if any(name.startswith("deepseekv41") for name in folded):
        raise ModelError(
            f"{where}: this is DeepSeek-V4.1 (model_type '{model}'), another architecture that this plugin cannot run; "
            f"use a DeepSeek-V4 checkpoint such as DeepSeek-V4-Flash-0731"
        )
    if model != "deepseek_v4":
        raise ModelError(f"{where}: 'model_type' is {model!r}, expected 'deepseek_v4'")
    if raw.get("num_nextn_predict_layers") and not _has_dspark(raw):
        raise ModelError(
            f"{where}: 'num_nextn_predict_layers' is {raw['num_nextn_predict_layers']} and there are no 'dspark_*' "
            f"keys: this is a preview release with a NextN head, which is not supported; use a DSpark release (0731, "
            f"0813, -DSpark), or remove the key if the mtp.* tensors were dropped"
        )
    for key, expected in (
        ("scoring_func", "sqrtsoftplus"),
        ("topk_method", "noaux_tc"),
        ("hidden_act", "silu"),
    ):
        if raw.get(key, expected) != expected:
            raise ModelError(f"{where}: '{key}' is {raw[key]!r}; DeepSeek-V4 has '{expected}'")
    for key, wanted in (("norm_topk_prob", True), ("tie_word_embeddings", False)):
        if raw.get(key, wanted) is not wanted:
            raise ModelError(f"{where}: '{key}' is {raw[key]!r}; DeepSeek-V4 has {str(wanted).lower()}")
    if raw.get("num_key_value_heads", 1) != 1:
        raise ModelError(f"{where}: 'num_key_value_heads' is {raw['num_key_value_heads']!r}; DeepSeek-V4 has 1")


def _has_dspark(raw: Mapping[str, Any]) -> bool:
    size = raw.get("dspark_block_size")
    return isinstance(size, int) and size > 0


def _dspark(read: _Reader, raw: Mapping[str, Any], where: str, layers: int, ratios: int) -> DSparkConfig | None:
    if not _has_dspark(raw):
        return None
    taps = read.sizes("dspark_target_layer_ids", least=0)
    if not taps or max(taps) >= layers:
        raise ModelError(f"{where}: 'dspark_target_layer_ids' is {list(taps)}; expected layers in 0..{layers - 1}")
    # The count of stages is the count of taps in every release; extra compress_ratios entries are a cross-check.
    if ratios > layers and ratios - layers != len(taps):
        raise ModelError(
            f"{where}: 'compress_ratios' has {ratios - layers} entries past the {layers} layers, but "
            f"'dspark_target_layer_ids' names {len(taps)} stages; the two must agree"
        )
    noise = read.size("dspark_noise_token_id", least=0)
    if noise >= read.size("vocab_size"):
        raise ModelError(
            f"{where}: 'dspark_noise_token_id' is {noise}, outside the vocabulary of {read.size('vocab_size')}"
        )
    return DSparkConfig(
        block_size=read.size("dspark_block_size", most=64),
        noise_token_id=noise,
        target_layer_ids=taps,
        markov_rank=read.size("dspark_markov_rank"),
        stages=len(taps),
    )


def _yarn(raw: Mapping[str, Any], where: str) -> Yarn | None:
    """`rope_scaling` as released, or the `rope_parameters` that transformers nests it into."""
    scaling = raw.get("rope_scaling")
    if scaling is None and isinstance(raw.get("rope_parameters"), Mapping):
        scaling = raw["rope_parameters"].get("compress")
    if scaling is None:
        return None
    if not isinstance(scaling, Mapping):
        raise ModelError(f"{where}: 'rope_scaling' is {scaling!r}, expected an object")
    kind = scaling.get("type", scaling.get("rope_type"))
    if kind in (None, "default"):
        return None
    if kind != "yarn":
        raise ModelError(f"{where}: 'rope_scaling.type' is {kind!r}; DeepSeek-V4 has 'yarn'")
    inner = _Reader(scaling, f"{where}: rope_scaling")
    return Yarn(
        factor=inner.number("factor"),
        original=inner.size("original_max_position_embeddings", most=1 << 31),
        beta_fast=inner.number("beta_fast", 32.0),
        beta_slow=inner.number("beta_slow", 1.0),
    )


def _check(c: ModelConfig, raw: Mapping[str, Any], where: str) -> None:
    """Values that are fine alone and wrong together."""
    rules = (
        (c.rope_dim % 2 == 0, f"'qk_rope_head_dim' is {c.rope_dim}, expected an even number"),
        (c.rope_dim <= c.head_dim, f"'qk_rope_head_dim' is {c.rope_dim}, more than 'head_dim' {c.head_dim}"),
        (
            c.rope_dim <= c.index_dim,
            f"'qk_rope_head_dim' is {c.rope_dim}, more than 'index_head_dim' {c.index_dim}",
        ),
        (
            c.heads * c.head_dim % c.o_groups == 0,
            f"'o_groups' is {c.o_groups}, which does not divide heads x head_dim = {c.heads * c.head_dim}",
        ),
        (
            c.experts_per_token <= c.experts,
            f"'num_experts_per_tok' is {c.experts_per_token}, more than 'n_routed_experts' {c.experts}",
        ),
        (c.hash_layers <= c.layers, f"'num_hash_layers' is {c.hash_layers}, more than the {c.layers} layers"),
        (c.shared_experts == 1, f"'n_shared_experts' is {c.shared_experts}; DeepSeek-V4 has 1"),
        (c.rms_eps > 0 and c.hc_eps > 0, "'rms_norm_eps' and 'hc_eps' must be above 0"),
        (
            c.rope_theta > 1 and c.compress_rope_theta > 1,
            "'rope_theta' and 'compress_rope_theta' must be above 1",
        ),
        (c.swiglu_limit > 0, f"'swiglu_limit' is {c.swiglu_limit}, expected a number above 0"),
        (
            all(t < c.vocab_size for t in c.eos),
            f"'eos_token_id' is {raw.get('eos_token_id')}, outside the vocabulary",
        ),
    )
    for fine, problem in rules:
        if not fine:
            raise ModelError(f"{where}: {problem}")


def _text(raw: Mapping[str, Any], key: str) -> str | None:
    value = raw.get(key)
    return value if isinstance(value, str) else None


class _Reader:
    """Typed access to keys; every complaint names the file and the key."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self._raw, self._where = raw, where

    def _get(self, key: str, default: Any) -> Any:
        value = self._raw.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self._where}: the key '{key}' is missing; a DeepSeek-V4 config must have it")
        return value

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ModelError(f"{self._where}: '{key}' is {value!r}, expected a whole number in {least}..{most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
            raise ModelError(f"{self._where}: '{key}' is {value!r}, expected a number")
        return float(value)

    def sizes(self, key: str, least: int) -> tuple[int, ...]:
        value = self._get(key, None)
        if not isinstance(value, list) or len(value) > 8192:
            raise ModelError(f"{self._where}: '{key}' is {type(value).__name__}, expected a list of whole numbers")
        for entry in value:
            if isinstance(entry, bool) or not isinstance(entry, int) or not least <= entry <= LARGEST:
                raise ModelError(f"{self._where}: '{key}' holds {entry!r}, expected whole numbers from {least} on")
        return tuple(value)

    def tokens(self, key: str) -> tuple[int, ...]:
        """A token id, a list of them, or nothing."""
        value = self._raw.get(key)
        if value is None:
            return ()
        if isinstance(value, list):
            return self.sizes(key, least=0)
        return (self.size(key, least=0),)
