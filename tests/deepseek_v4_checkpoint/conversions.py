"""tiny-Q as MLX's converters would write it, and what such arrays mean, in float64.

Names follow mlx-lm and mlx-vlm as published; written as chains of replacements here, apart from the code under test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from tests.deepseek_v4_checkpoint import tinyq
from tests.deepseek_v4_checkpoint.tinyq import Oracle, Raw

_FORMS: Mapping[str, dict[str, Any]] = {
    "mxfp4": {"mode": "mxfp4", "group_size": 32, "bits": 4},
    "mxfp8": {"mode": "mxfp8", "group_size": 32, "bits": 8},
    **{f"affine{bits}": {"group_size": 64, "bits": bits} for bits in (2, 3, 4, 8)},
}


def quantise(values: NDArray[np.float64], form: str) -> dict[str, Raw]:
    """The parts MLX stores, BF16 scales for affine forms."""
    if form == "bfloat16":
        return {"weight": ("BF16", tinyq.bf16_bits(values))}
    made = mx.quantize(mx.array(values.astype(np.float32)).astype(mx.bfloat16), **_FORMS[form])
    parts: dict[str, Raw] = {}
    for suffix, array in zip(("weight", "scales", "biases"), made, strict=False):
        if array.dtype == mx.bfloat16:
            parts[suffix] = ("BF16", np.array(array.view(mx.uint16)))
        else:
            parts[suffix] = ("U32" if array.dtype == mx.uint32 else "U8", np.array(array))
    return parts


def meaning(parts: Mapping[str, Raw], form: str) -> NDArray[np.float64]:
    """What stored parts stand for: codes are a stream of bits, lowest first, whatever their width."""
    weight = parts["weight"][1]
    if form == "bfloat16":
        return tinyq.bf16_values(weight)
    bits, group = _FORMS[form]["bits"], _FORMS[form]["group_size"]
    octets = np.ascontiguousarray(weight).view(np.uint8)
    stream = np.unpackbits(octets, axis=-1, bitorder="little").reshape(*weight.shape[:-1], -1, bits)
    codes = (stream * (1 << np.arange(bits))).sum(axis=-1)
    values: NDArray[np.float64]
    if form.startswith("mx"):
        scales = np.ldexp(1.0, parts["scales"][1].astype(int) - 127)
        values = (tinyq.E2M1_VALUES if bits == 4 else tinyq.e4m3_values())[codes] * np.repeat(scales, group, axis=-1)
    else:
        scales, biases = (np.repeat(tinyq.bf16_values(parts[s][1]), group, axis=-1) for s in ("scales", "biases"))
        values = codes * scales + biases
    return values


def form_of(kind: str, name: str, experts: str, dense: str, vocabulary: str) -> str | None:
    if kind == "fp4":
        return experts
    if kind == "fp8":
        return dense
    if name in ("embed.weight", "head.weight"):
        return vocabulary
    return "bfloat16" if kind == "bf16" and not name.endswith("norm.weight") else None


def convert(
    exact: Oracle, style: str, experts: str, dense: str, vocabulary: str = "bfloat16"
) -> tuple[dict[str, Raw], Oracle]:
    """(tensors in MLX's names, their values by official names, a bank's without its experts' numbers)."""
    out: dict[str, Raw] = {}
    values: Oracle = {}
    banks: dict[str, list[dict[str, Raw]]] = {}
    bank_forms: dict[str, str] = {}
    for name, kind, _ in tinyq.names_and_shapes():
        form = form_of(kind, name, experts, dense, vocabulary)
        if form is None:
            raw = tinyq.as_floats({name: exact[name]}, "BF16")[name]
            out[rename(name, style)] = ("I32", raw[1].astype(np.int32)) if kind == "i64" else raw
            values[name] = exact[name]
            continue
        parts = quantise(exact[name], form)
        stacked = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        if stacked != name:
            banks.setdefault(stacked, []).append(parts)
            bank_forms[stacked] = form
            continue
        values[name] = meaning(parts, form)
        for suffix, (dtype, array) in parts.items():
            if style == "mlx-vlm" and ".wo_a." in name:
                array = array.reshape(tinyq.CONFIG["o_groups"], -1, array.shape[-1])
            out[rename(name.removesuffix("weight") + suffix, style)] = (dtype, array)
    for name, experts_parts in banks.items():
        first = experts_parts[0]
        stacked_parts = {s: (dtype, np.stack([p[s][1] for p in experts_parts])) for s, (dtype, _) in first.items()}
        values[name] = meaning(stacked_parts, bank_forms[name])
        for suffix, part in stacked_parts.items():
            out[rename(name.removesuffix("weight") + suffix, style)] = part
    return out, values


def rename(name: str, style: str) -> str:
    """style: "mlx-lm", "mlx-vlm" (the same below `language_model.`), or "drafter" (mlx-vlm's, on its own)."""
    for old, new in (
        (".ffn.experts.w1.", ".ffn.switch_mlp.gate_proj."),
        (".ffn.experts.w2.", ".ffn.switch_mlp.down_proj."),
        (".ffn.experts.w3.", ".ffn.switch_mlp.up_proj."),
        (".shared_experts.w1.", ".shared_experts.gate_proj."),
        (".shared_experts.w2.", ".shared_experts.down_proj."),
        (".shared_experts.w3.", ".shared_experts.up_proj."),
        (".ffn.gate.bias", ".ffn.gate.e_score_correction_bias"),
        (".hc_attn_", ".attn_hc."),
        (".hc_ffn_", ".ffn_hc."),
        ("hc_head_", "hc_head."),
    ):
        name = name.replace(old, new)
    if name.startswith("mtp."):
        if style == "drafter":
            name = name.replace("mtp.", "stages.", 1)
            name = re.sub(r"^stages\.\d+\.markov_head\.", "markov_head.", name)
        return name
    name = name.replace("head.", "lm_head.", 1) if name.startswith("head.") else name
    name = name.replace("embed.", "embed_tokens.", 1) if name.startswith("embed.") else name
    name = name if name.startswith("lm_head.") else f"model.{name}"
    return f"language_model.{name}" if style == "mlx-vlm" else name
