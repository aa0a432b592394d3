"""A small DeepSeek-V4 checkpoint in the real formats ("tiny-Q"), with what it must decode to, in float64.

Written without the code under test: its own encoder, its own file writer, its own list of tensors. Every dimension is
a multiple of 128, so that FP8 blocks, FP4 groups and the indexer's 128 are real; one weight in a few is an outlier, so
that scales differ from block to block.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Raw: TypeAlias = tuple[str, NDArray[Any]]
"""safetensors dtype and the payload."""
Oracle: TypeAlias = dict[str, NDArray[np.float64]]

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 257,
    "hidden_size": 256,
    "num_hidden_layers": 7,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0, 0, 0],
    "num_hash_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 128,
    "o_groups": 2,
    "o_lora_rank": 128,
    "sliding_window": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "index_n_heads": 16,
    "index_head_dim": 128,
    "index_topk": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
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
    "torch_dtype": "bfloat16",
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
    },
    "num_nextn_predict_layers": 1,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 256,
    "dspark_target_layer_ids": [4, 5, 6],
    "dspark_markov_rank": 32,
}


# --------------------------------------------------------------------------------------------------------------
# Number formats, from their definitions
# --------------------------------------------------------------------------------------------------------------


def e4m3_values() -> NDArray[np.float64]:
    """Value of each of the 256 codes: sign, 4 exponent bits of bias 7, 3 of mantissa; only 0x7f and 0xff are NaN."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).astype(np.float64)
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8 + mantissa, exponent - 10))
    value[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -value, value)


E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nearest(values: NDArray[np.float64], table: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Code of the nearest value of a table (NaN never)."""
    finite = np.flatnonzero(np.isfinite(table))
    order = finite[np.argsort(table[finite], kind="stable")]
    ladder = table[order].astype(np.float64)
    at = np.clip(np.searchsorted(ladder, values), 1, len(ladder) - 1)
    lower: NDArray[np.bool_] = values - ladder[at - 1] <= ladder[at] - values
    codes: NDArray[np.uint8] = order[np.where(lower, at - 1, at)].astype(np.uint8)
    return codes


def exponents(largest: NDArray[np.float64], top: float) -> NDArray[np.uint8]:
    """UE8M0 byte of the smallest power of two that brings `largest` to at most `top`."""
    power: NDArray[np.float64] = np.ceil(np.log2(np.maximum(largest, 1e-30) / top))
    return np.clip(power + 127, 0, 254).astype(np.uint8)


def encode_fp8(weight: NDArray[np.float64]) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float64]]:
    """[o, i], multiples of 128 -> codes, block scales, and exactly what they stand for."""
    o, i = weight.shape
    blocks = weight.reshape(o // 128, 128, i // 128, 128)
    scale = exponents(np.abs(blocks).max(axis=(1, 3)), 448)
    factor = np.ldexp(1.0, scale.astype(int) - 127)[:, None, :, None]
    codes = nearest(blocks / factor, e4m3_values())
    return codes.reshape(o, i), scale, (e4m3_values()[codes] * factor).reshape(o, i)


def encode_fp4(weight: NDArray[np.float64]) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float64]]:
    """[o, i] -> bytes [o, i/2] with the even column low, group scales [o, i/32], and what they stand for."""
    o, i = weight.shape
    groups = weight.reshape(o, i // 32, 32)
    scale = exponents(np.abs(groups).max(axis=2), 6)
    factor = np.ldexp(1.0, scale.astype(int) - 127)[:, :, None]
    codes = nearest(groups / factor, E2M1_VALUES)
    exact = (E2M1_VALUES[codes] * factor).reshape(o, i)
    pairs = codes.reshape(o, i // 2, 2)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).astype(np.uint8), scale, exact


def bf16_bits(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


# --------------------------------------------------------------------------------------------------------------
# The model
# --------------------------------------------------------------------------------------------------------------


def names_and_shapes(
    config: Mapping[str, Any] = CONFIG, drafter: bool = True
) -> Iterable[tuple[str, str, tuple[int, ...]]]:
    """(official name, kind, logical shape), written out from the release's tables; kinds: fp8 fp4 bf16 f32 i64."""
    d, v, n = config["hidden_size"], config["vocab_size"], config["hc_mult"]
    heads, width, qr = config["num_attention_heads"], config["head_dim"], config["q_lora_rank"]
    groups, rank, inter = config["o_groups"], config["o_lora_rank"], config["moe_intermediate_size"]
    experts, layers = config["n_routed_experts"], config["num_hidden_layers"]

    yield from (("embed.weight", "bf16", (v, d)), ("head.weight", "bf16", (v, d)))
    yield from head("", d, n)
    blocks = [(f"layers.{i}", config["compress_ratios"][i], i < config["num_hash_layers"]) for i in range(layers)]
    stages = len(config["dspark_target_layer_ids"]) if drafter else 0
    for p, ratio, hashed in [*blocks, *((f"mtp.{s}", 0, False) for s in range(stages))]:
        yield from ((f"{p}.attn_norm.weight", "bf16", (d,)), (f"{p}.ffn_norm.weight", "bf16", (d,)))
        yield f"{p}.attn.wq_a.weight", "fp8", (qr, d)
        yield f"{p}.attn.q_norm.weight", "bf16", (qr,)
        yield f"{p}.attn.wq_b.weight", "fp8", (heads * width, qr)
        yield f"{p}.attn.wkv.weight", "fp8", (width, d)
        yield f"{p}.attn.kv_norm.weight", "bf16", (width,)
        yield f"{p}.attn.attn_sink", "f32", (heads,)
        yield f"{p}.attn.wo_a.weight", "fp8", (groups * rank, heads * width // groups)
        yield f"{p}.attn.wo_b.weight", "fp8", (d, groups * rank)
        for branch in ("attn", "ffn"):
            yield f"{p}.hc_{branch}_fn", "f32", ((2 + n) * n, n * d)
            yield f"{p}.hc_{branch}_base", "f32", ((2 + n) * n,)
            yield f"{p}.hc_{branch}_scale", "f32", (3,)
        yield f"{p}.ffn.gate.weight", "bf16", (experts, d)
        if hashed:
            yield f"{p}.ffn.gate.tid2eid", "i64", (v, config["num_experts_per_tok"])
        else:
            yield f"{p}.ffn.gate.bias", "f32", (experts,)
        for which, shape in (("w1", (inter, d)), ("w2", (d, inter)), ("w3", (inter, d))):
            for e in range(experts):
                yield f"{p}.ffn.experts.{e}.{which}.weight", "fp4", shape
            yield f"{p}.ffn.shared_experts.{which}.weight", "fp8", shape
        if ratio:
            yield from compressor(f"{p}.attn.compressor", ratio, width, d)
        if ratio == 4:
            yield f"{p}.attn.indexer.wq_b.weight", "fp8", (config["index_n_heads"] * config["index_head_dim"], qr)
            yield f"{p}.attn.indexer.weights_proj.weight", "bf16", (config["index_n_heads"], d)
            yield from compressor(f"{p}.attn.indexer.compressor", 4, config["index_head_dim"], d)
    if stages:
        markov, last = config["dspark_markov_rank"], f"mtp.{stages - 1}"
        yield "mtp.0.main_proj.weight", "fp8", (d, stages * d)
        yield "mtp.0.main_norm.weight", "bf16", (d,)
        yield from head(f"{last}.", d, n)
        yield f"{last}.markov_head.markov_w1.weight", "bf16", (v, markov)
        yield f"{last}.markov_head.markov_w2.weight", "bf16", (v, markov)
        yield f"{last}.confidence_head.proj.weight", "bf16", (1, d + markov)


def head(prefix: str, d: int, n: int) -> Iterable[tuple[str, str, tuple[int, ...]]]:
    yield f"{prefix}norm.weight", "bf16", (d,)
    yield f"{prefix}hc_head_fn", "f32", (n, n * d)
    yield f"{prefix}hc_head_base", "f32", (n,)
    yield f"{prefix}hc_head_scale", "f32", (1,)


def compressor(prefix: str, ratio: int, width: int, d: int) -> Iterable[tuple[str, str, tuple[int, ...]]]:
    wide = 2 * width if ratio == 4 else width
    yield f"{prefix}.wkv.weight", "bf16", (wide, d)
    yield f"{prefix}.wgate.weight", "bf16", (wide, d)
    yield f"{prefix}.ape", "f32", (ratio, wide)
    yield f"{prefix}.norm.weight", "bf16", (width,)


def make(seed: int = 0, drafter: bool = True) -> tuple[dict[str, Raw], Oracle]:
    """Tensors as an official release stores them, and their exact values by the names of the weights."""
    raw, exact = _made(seed, drafter)
    return dict(raw), dict(exact)


@cache
def _made(seed: int, drafter: bool) -> tuple[dict[str, Raw], Oracle]:
    rng = np.random.default_rng(seed)
    raw: dict[str, Raw] = {}
    exact: Oracle = {}
    for name, kind, shape in names_and_shapes(CONFIG, drafter):
        values = _values(rng, name, shape, CONFIG)
        match kind:
            case "fp8" | "fp4":
                code, scale, exact[name] = (encode_fp8 if kind == "fp8" else encode_fp4)(values)
                raw[name] = ("F8_E4M3" if kind == "fp8" else "I8", code)
                raw[name.removesuffix("weight") + "scale"] = ("F8_E8M0", scale)
            case "bf16":
                bits = bf16_bits(values)
                raw[name], exact[name] = ("BF16", bits), bf16_values(bits)
            case "f32":
                single = values.astype(np.float32)
                raw[name], exact[name] = ("F32", single), single.astype(np.float64)
            case _:
                raw[name], exact[name] = ("I64", values.astype(np.int64)), values
    return raw, exact


def _values(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], config: Mapping[str, Any]
) -> NDArray[np.float64]:
    if name.endswith("tid2eid"):
        rows = [rng.permutation(config["n_routed_experts"])[: shape[1]] for _ in range(shape[0])]
        return np.array(rows, dtype=np.float64)
    if name.endswith("norm.weight"):
        return 1 + 0.2 * rng.standard_normal(shape)
    if name.endswith("scale"):
        return rng.uniform(0.5, 1.5, shape)
    if name.endswith(("base", "bias", "sink", "ape")):
        return 0.5 * rng.standard_normal(shape)
    values: NDArray[np.float64] = rng.standard_normal(shape) * 1.5 / np.sqrt(shape[-1])
    values[rng.random(shape) < 0.002] *= 30
    return values


# --------------------------------------------------------------------------------------------------------------
# Files
# --------------------------------------------------------------------------------------------------------------


def save_file(path: Path, tensors: Mapping[str, Raw]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def save(path: Path, tensors: Mapping[str, Raw], config: Mapping[str, Any] = CONFIG, shards: int = 3) -> Path:
    """A model directory: the drafter alone in the last shard, the rest dealt over the others, experts across shards."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(path / "model.safetensors", tensors)
        return path
    dealt: list[dict[str, Raw]] = [{} for _ in range(shards)]
    for i, (name, tensor) in enumerate(tensors.items()):
        dealt[-1 if name.startswith("mtp.") else i % (shards - 1)][name] = tensor
    dealt = [shard for shard in dealt if shard]
    weight_map = {}
    for i, shard in enumerate(dealt):
        file = f"model-{i + 1:05d}-of-{len(dealt):05d}.safetensors"
        save_file(path / file, shard)
        weight_map.update(dict.fromkeys(shard, file))
    total = sum(array.nbytes for _, array in tensors.values())
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
    )
    return path


def write(path: Path, seed: int = 0, drafter: bool = True) -> Oracle:
    """tiny-Q in `path`, in official dtypes; returns its exact values."""
    raw, exact = make(seed, drafter=drafter)
    config = {key: value for key, value in CONFIG.items() if drafter or not key.startswith(("dspark", "num_nextn"))}
    save(path, raw, config)
    return exact


def as_floats(exact: Oracle, dtype: str) -> dict[str, Raw]:
    """The same values under the same names without quantisation, in BF16 or F32 (exact: both formats hold them)."""
    out: dict[str, Raw] = {}
    for name, values in exact.items():
        if name.endswith("tid2eid"):
            out[name] = ("I64", values.astype(np.int64))
        elif dtype == "BF16" and name.endswith("weight"):
            out[name] = ("BF16", bf16_bits(values))
        else:
            out[name] = ("F32", values.astype(np.float32))
    return out
